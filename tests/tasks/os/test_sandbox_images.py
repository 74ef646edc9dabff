"""Images of sandboxes, and the command line that builds and tidies them."""

import json
import os
import platform
import re
import stat
import subprocess
from pathlib import Path

import pytest

from agentbench_fc.errors import CallerError
from agentbench_fc.tasks.os.sandbox import SandboxUnavailable
from agentbench_fc.tasks.os.sandbox.images import Images, recipe_folder, shift_owners


def test_owners_are_shifted_and_rights_kept(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # only root can give files away
    (tmp_path / "d").mkdir()
    file = tmp_path / "d" / "f"
    file.write_text("x")
    os.chown(file, 5, 6)
    file.chmod(0o6755)
    (tmp_path / "l").symlink_to("/etc/passwd")
    before = os.stat("/etc/passwd")
    shift_owners(tmp_path, 1000)
    shift_owners(tmp_path, 1000)
    facts = file.stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (1005, 1006, 0o6755)
    assert (tmp_path / "l").lstat().st_uid == 1000
    assert (before.st_uid, before.st_mode) == (os.stat("/etc/passwd").st_uid, os.stat("/etc/passwd").st_mode)


def test_images_are_found_by_recipe_and_pruned(tmp_path: Path) -> None:
    images = Images(tmp_path)
    assert images.find("default") is None
    with pytest.raises(SandboxUnavailable, match="sandbox build --stage packages"):
        images.get("packages")
    with pytest.raises(CallerError, match="Did you mean 'default'"):
        images.find("defalt")
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("x")
    made = images._pack(root, "default", "debootstrap bookworm")
    assert images.find("default") == made
    assert made.machine == platform.machine()
    assert made.tag == f"agentbench-fc/os-default:{made.sha256[:12]}"
    assert images._pack(root, "default", "debootstrap bookworm").sha256 == made.sha256
    (tmp_path / "default-old.tar").write_bytes(b"x" * 100)
    (tmp_path / "tmp-under-way").mkdir()
    assert images.prune() >= 100
    assert (tmp_path / "tmp-under-way").is_dir()
    assert images.find("default") == made
    for wrong in ("none", "docker:", "debootstrap sid"):
        with pytest.raises(CallerError, match="sandbox build"):
            images.build("default", base=wrong)


def test_the_recipe_has_every_stage_and_needs_no_buildkit() -> None:
    dockerfile = (recipe_folder() / "Dockerfile").read_text()
    assert re.findall(r"AS (\w+)", dockerfile) == ["ubuntu", "default", "packages"]
    assert "ARG BASE_IMAGE" in dockerfile
    assert "--mount" not in dockerfile
    subprocess.run(["sh", "-n", recipe_folder() / "install.sh"], check=True, timeout=10)


def run_cli(*arguments: str) -> tuple[int, str]:
    from typer.testing import CliRunner

    from agentbench_fc.tasks.os.sandbox.cli import app

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout


def test_the_command_line_says_what_is_built_and_tidies_up(tmp_path: Path) -> None:
    images = Images(tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    made = images._pack(root, "packages", "debootstrap bookworm")
    code, text = run_cli("build", "--stage", "packages", "--cache", str(tmp_path))
    assert code == 0
    assert f"image packages is there already: 0 MiB, from debootstrap bookworm [{tmp_path / made.archive}]" in text
    code, text = run_cli("build", "--stage", "packages", "--cache", str(tmp_path), "--json")
    assert json.loads(text) | {"tag": made.tag, "built": False} == json.loads(text)
    (tmp_path / "default-old.tar").write_bytes(bytes(3 << 20))
    code, text = run_cli("prune", "--cache", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(text)["bytes"] >= 3 << 20
    assert set(json.loads(text)["sandboxes"]) == {"docker", "oci"}
    assert images.find("packages") == made


def test_a_probe_names_each_kind_and_fails_where_none_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path))
    code, text = run_cli("probe")
    assert code == 4
    assert "docker: does not work: no container engine answers" in text
    assert "oci: does not work: " in text
    assert text.count("mend it: ") == 2
    code, text = run_cli("probe", "--backend", "docker", "--json")
    assert (code, json.loads(text)[0]["ok"]) == (4, False)
