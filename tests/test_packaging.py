"""The package as users install it: metadata, licences, and a core installation of the wheel."""

import email
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from local_bench.core.packages import DISTRIBUTION, EXTRAS
from scripts.third_party import LOCKS, NOTICE, refusal, rows
from scripts.wheel_needs import locked

from .conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = {"opencv-python-headless": "cv2", "scikit-image": "skimage", "scikit-learn": "sklearn"}
NEVER_IMPORTED = {"protobuf", "cuda-python"}


def test_every_extra_is_described():
    extras = PROJECT["project"]["optional-dependencies"]
    assert PROJECT["project"]["name"] == DISTRIBUTION
    assert set(extras) == set(EXTRAS)
    for name, requirements in extras.items():
        brought = {canonicalize_name(Requirement(line).name) for line in requirements} - NEVER_IMPORTED - {DISTRIBUTION}
        assert {MODULES.get(one, one.replace("-torch", "").replace("-", "_")) for one in brought} == set(EXTRAS[name].modules)
