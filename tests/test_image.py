"""The image without a container engine: its environment and folders, for users that it does not know."""

import os
import re
import subprocess
import sys
import tempfile

import pytest

from .conftest import ROOT

DOCKERFILE = (ROOT / "Dockerfile.cuda").read_text().replace("\\\n", " ")
README = (ROOT / "README.md").read_text()
TRY = """
import getpass, os, pathlib, sys
os.setgroups([]), os.setgid(4321), os.setuid(int(sys.argv[1]))
getpass.getuser()
for name in sys.argv[2:]:
    folder = pathlib.Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"by-{sys.argv[1]}").write_text("x")
"""


def environment():
    (text,) = re.findall(r"^ENV (PYTHONUNBUFFERED.*)$", DOCKERFILE, re.M)
    return {name: value.strip('"') for name, value in re.findall(r"(\w+)=(\"[^\"]*\"|\S+)", text)}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("uid", [1000, 4321])
@pytest.mark.parametrize("mounted", [False, True], ids=["as built", "cache mounted empty"])
def test_any_user_can_write_where_the_image_says(uid, mounted):
    """The folders that the image makes, with its modes; or an empty volume of that user in the place of /cache."""
    (made, modes) = re.findall(r"mkdir -p (.*?) && chmod 1777 (.*?)$", DOCKERFILE, re.M)[0]
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        for name in made.split():
            os.makedirs(root + name)
        for name in modes.split():
            os.chmod(root + name, 0o1777)
        if mounted:
            os.rmdir(f"{root}/cache/home")
            os.chmod(f"{root}/cache", 0o700)
            os.chown(f"{root}/cache", uid, uid)
        told = environment()
        folders = [told[n] for n in ("LOCAL_BENCH_RUNS", "LOCAL_BENCH_CACHE", "HF_HOME", "HOME", "TRITON_CACHE_DIR")]
        command = [sys.executable, "-I", "-c", TRY, str(uid), *(root + folder for folder in folders)]
        env = {name: told[name] for name in ("HOME", "USER", "LOGNAME")}
        ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


def test_what_a_later_run_needs_is_in_a_volume():
    (volumes,) = re.findall(r"^VOLUME \[(.*)\]$", DOCKERFILE, re.M)
    kept = re.findall(r'"(.*?)"', volumes)
    told = environment()
    for name in ("LOCAL_BENCH_RUNS", "LOCAL_BENCH_CACHE", "HF_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        assert told[name].startswith(tuple(kept)), name
    assert all(f":{volume}" in README for volume in kept)


def test_folders_that_are_mounted_are_made_first():
    block = README[README.index("docker build -f Dockerfile.cuda") :]
    made = re.search(r"^mkdir -p (.*)$", block, re.M)
    assert made is not None
    assert made.start() < block.index("docker run")
    for mount in re.findall(r'-v "\$(?:PWD|HOME)/([^:"]+):', block):
        assert mount in made.group(1)


def test_an_old_driver_is_refused_by_the_container_toolkit():
    lock = (ROOT / "requirements/cuda.lock").read_text()
    (cuda,) = re.findall(r"^cuda-toolkit==(\d+)\.", lock, re.M)
    newest, oldest = environment()["NVIDIA_REQUIRE_CUDA"].split()  # one of them must hold
    assert newest == f"cuda>={cuda}.0"
    assert oldest == "driver>=535"  # the oldest branch with forward-compatibility libraries for CUDA 13
