"""The hostile campaign without limits: every case of every grammar, then random ones until the time is over.

    python scripts/hostile.py --hours 1

Cases of the grammars run once each (about 30,000). After them hypothesis mutates bytes and values of every input of
tests/hostile/inputs.py until the time is over. Prints each fault with the input that caused it; exit 1 if there is any.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def mutated(data: bytes, random_numbers: random.Random) -> bytes:
    """`data` with a few bytes changed, removed, repeated or replaced by a hostile value."""
    from tests.hostile.values import LITERALS, RAW

    changed = bytearray(data)
    for _ in range(random_numbers.randint(1, 6)):
        at = random_numbers.randrange(len(changed) + 1)
        end = min(len(changed), at + random_numbers.randint(1, 12))
        match random_numbers.randrange(6):
            case 0:
                changed[at:end] = random_numbers.randbytes(end - at)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = changed[at:end] * random_numbers.randint(1, 50)
            case 3:
                changed[at:end] = random_numbers.choice(LITERALS).encode()
            case 4:
                changed[at:at] = random_numbers.choice(list(RAW.values()))[:2000]
            case 5:
                changed[at:at] = random_numbers.choice(
                    [b"\0", b"\xff", b"\xe2\x80\xae", b"\x1b[", b'"', b"{", b"[", b":"]
                )
    return bytes(changed)


def fuzz(until: float, seed: int) -> int:
    """Random inputs until the time `until` (time.monotonic); the number of faults."""
    import json

    from tests.hostile.harness import run
    from tests.hostile.inputs import base, inputs

    random_numbers, n, faults = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["LOCAL_BENCH_CACHE"] = str(Path(folder) / "cache")
        shutil.copytree(ROOT / "tests/data/earlier_run", "kept")
        base(Path("kept"))
        slow = ("people settle", "config fetch", "config generate")
        entries = [entry for entry in inputs(Path("kept")) if entry.name not in slow]
        while time.monotonic() < until:
            entry = random_numbers.choice(entries)
            path = Path(entry.file)
            before = path.read_bytes() if path.is_file() else None
            data = mutated(json.dumps(entry.data).encode(), random_numbers)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            outcome = run(entry.argv)
            n += 1
            for fault in outcome.faults:
                faults += 1
                print(f"{entry.name}: {fault}\n  input: {data!r}\n", flush=True)
            path.unlink() if before is None else path.write_bytes(before)
    print(f"{n} random cases, {faults} faults (seed {seed})")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-random", action="store_true", help="leave out the cases of the grammars")
    options = parser.parse_args()
    until = time.monotonic() + options.hours * 3600
    failed = False
    if not options.only_random:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/hostile"]
        every = {"HOSTILE_EVERY": "1", "HOSTILE_FAULTS_EVERY": "1"}
        failed = bool(subprocess.run(command, cwd=ROOT, env=os.environ | every, check=False).returncode)
    return int(bool(fuzz(until, options.seed)) or failed)


if __name__ == "__main__":
    sys.exit(main())
