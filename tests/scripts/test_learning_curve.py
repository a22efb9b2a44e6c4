"""The learning curve, small."""

import json

from scripts import learning_curve


def test_a_small_curve(monkeypatch):
    monkeypatch.setattr(learning_curve, "SIZES", (60,))
    made = learning_curve.images(40)
    assert len(made) == 160
    assert made == learning_curve.images(40), "seeded"
    found = learning_curve.curve(made, "strict", 2)
    assert [row["kind"] for row in found["rows"]] == ["rule", "logistic"]
    assert all(0.3 < row["accuracy"] <= 1 for row in found["rows"])
    assert found["client_without_noise"] > 0.75
    json.dumps(found, allow_nan=False)
