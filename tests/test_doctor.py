"""What the doctor sees: absent parts are named with the command that brings them, and nothing makes it wait."""

import importlib.metadata
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from agentbench_fc import doctor
from agentbench_fc.tasks.os.sandbox.images import Images


def found(name: str) -> doctor.Finding:
    return next(each for each in doctor.diagnose().findings if each.name == name)


def test_a_sound_installation_has_nothing_missing() -> None:
    diagnosis = doctor.diagnose()
    assert not [each for each in diagnosis.missing if each.area == "base"]
    assert {"python", "numpy", "aiohttp", "pyoxigraph", "cache"} <= {each.name for each in diagnosis.findings}
    text = diagnosis.to_text()
    assert all(each.detail in text and each.mend in text for each in diagnosis.findings)
    assert all(
        each.mend
        for each in diagnosis.findings
        if each.state in {"missing", "optional"} and "not set" not in each.detail
    )
    plain = json.loads(json.dumps(diagnosis.to_dict()))
    assert plain["ok"] is (not diagnosis.missing)


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in {"sqlglot", "PyMySQL"}:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert found("sqlglot").state == "missing"
    assert found("sqlglot").mend.startswith("pip install 'sqlglot")
    assert not doctor.diagnose().to_dict()["ok"]
    assert "PyMySQL" in doctor._db()[1].detail
    assert "pip install 'agentbench-fc[db]'" in doctor._db()[1].mend


def test_the_operating_system_task_needs_an_engine_or_root_with_runc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    [finding] = doctor._os()
    assert finding.state == "missing"
    assert "apt-get install" in finding.mend
    (tmp_path / "runc").write_text("#!/bin/sh\n")
    (tmp_path / "runc").chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root" in doctor._os()[0].detail
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert (doctor._os()[0].state, "backend oci" in doctor._os()[0].detail) == ("ok", True)
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    assert (doctor._os()[1].state, doctor._os()[1].mend) == ("missing", "agentbench-fc sandbox build")
    folder = tmp_path / "cache" / "os-images"
    folder.mkdir(parents=True)
    meta = Images()._archive("default").with_suffix(".json")
    facts = {
        "stage": "default",
        "archive": "a.tar.gz",
        "sha256": "0",
        "base": "debootstrap",
        "machine": "m",
        "made": "now",
    }
    meta.write_text(json.dumps(facts))
    (folder / "a.tar.gz").touch()
    assert (doctor._os()[1].state, "debootstrap" in doctor._os()[1].detail) == ("ok", True)
    meta.write_text("{")
    assert (doctor._os()[1].state, "cannot be read" in doctor._os()[1].detail) == ("missing", True)


@pytest.mark.parametrize("reply", [b"HTTP/1.0 200 OK\r\n\r\nOK", b"HTTP/1.0 500 no\r\n\r\n", b""])
def test_a_container_engine_is_asked_over_its_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reply: bytes
) -> None:
    path = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    monkeypatch.setattr(doctor, "ENGINE_WAIT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(100)
                if reply:
                    link.sendall(reply)
                else:
                    released.wait(10)  # an engine that hangs

        released = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        start = time.monotonic()
        assert bool(doctor._engine()) is (b" 200 " in reply)
        assert time.monotonic() - start < 5
        released.set()
        thread.join()


def test_an_image_that_docker_has_built_is_not_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    known = [b"GET /_ping ", b"GET /images/agentbench-fc/os-default/json "]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/engine.sock")
        server.listen()
        server.settimeout(10)

        def serve() -> None:
            for _ in range(4):
                link, _ = server.accept()
                with link:
                    asked = link.recv(100)
                    link.sendall(
                        b"HTTP/1.0 200 OK\r\n\r\n" if asked.startswith(tuple(known)) else b"HTTP/1.0 404 no\r\n\r\n"
                    )

        thread = threading.Thread(target=serve)
        thread.start()
        states = [doctor._os()[1].state]
        known.pop()
        states.append(doctor._os()[1].state)
        thread.join(10)
    assert states == ["ok", "missing"]


def test_a_cache_that_cannot_be_written_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTBENCH_FC_CACHE", str(tmp_path / "file" / "cache"))
    assert found("cache").state == "missing"
    assert "AGENTBENCH_FC_CACHE" in found("cache").mend


def test_a_data_folder_that_is_not_there_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTBENCH_DATA", str(tmp_path / "nowhere"))
    assert found("AGENTBENCH_DATA").state == "missing"
    monkeypatch.setenv("AGENTBENCH_DATA", str(tmp_path))
    assert found("AGENTBENCH_DATA").state == "ok"
    monkeypatch.delenv("AGENTBENCH_DATA")
    assert found("AGENTBENCH_DATA").state == "optional"
