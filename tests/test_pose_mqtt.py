"""Poses over MQTT, with a real mosquitto: taken, refused, retained; broker killed and back; passwords; TLS."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional

import numpy as np
import pytest

from edgegs.camera import build_path, look_at
from edgegs.errors import ConfigError

pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed: MQTT is not tested")

from edgegs.camera.mqtt import Mqtt

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
MOSQUITTO = shutil.which("mosquitto", path=_PATH)
HOME = {"eye": [0, 0, -4], "target": [0, 0, 0]}
TOPIC = "robot/pose"
SECRET = "kiebitz-4711"

needs_broker = pytest.mark.skipif(MOSQUITTO is None, reason="no mosquitto (apt install mosquitto): MQTT is not tested")


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """A mosquitto of one test."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.port, self._folder = free_port(), folder
        self._process: Optional[subprocess.Popen[bytes]] = None
        lines = [f"listener {self.port} 127.0.0.1", "persistence false", *settings]
        if os.geteuid() == 0:
            lines.append("user root")  # it could not read the test's files as its own user
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(MOSQUITTO), "-c", str(self._folder / "mosquitto.conf")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_for(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "mosquitto.log").read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    made: List[Broker] = []

    def start(*settings: str) -> Broker:
        folder = tmp_path / f"broker{len(made)}"
        folder.mkdir()
        made.append(Broker(folder, *settings))
        made[-1].start()
        return made[-1]

    yield start
    for broker in made:
        broker.kill()


@pytest.fixture
def opened() -> Iterator[Callable[..., Mqtt]]:
    paths: List[Mqtt] = []

    def start(port: int, **more: Any) -> Mqtt:
        settings = {"kind": "mqtt", "host": "127.0.0.1", "port": port, "topic": TOPIC, "home": HOME}
        backoff = {"backoff_s": (0.05, 0.2), "smooth_s": 0.0, "hold_s": 60.0}
        path = build_path({**settings, **backoff, **more}, 64, 48)
        assert isinstance(path, Mqtt)
        paths.append(path)
        path.open()
        return path

    yield start
    for path in paths:
        path.close()
        path.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "edgegs-pose"]


def publish(broker: Broker, *payloads: Any, retain: bool = False, topic: str = TOPIC, **login: Any) -> None:
    """Each in its turn, from a client of its own that waits until the broker has them."""
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    client = paho.Client(CallbackAPIVersion.VERSION2)
    if login:
        client.username_pw_set(login["username"], login["password"])
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    try:
        for payload in payloads:
            raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            client.publish(topic, raw, qos=1, retain=retain).wait_for_publish(10)
    finally:
        client.disconnect()
        client.loop_stop()


def at(x: float, **more: Any) -> Any:
    return {"position": [x, 0, -4], "quaternion": [1, 0, 0, 0], **more}


def is_up(path: Mqtt) -> Callable[[], bool]:
    return lambda: path.status()["link"] == "up"


@needs_broker
def test_messages_move_the_camera(brokers: Any, opened: Any) -> None:
    broker = brokers("allow_anonymous true")
    path = opened(broker.port, topic="robot/+")
    assert path.camera_at(0).eye[2] == -4
    wait_for(is_up(path))
    publish(broker, {"position": [0, -1, -2], "look_at": [0, 0, 0]})
    wait_for(lambda: path.status()["state"] == "live")
    np.testing.assert_allclose(path.camera_at(0).viewmat, look_at([0, -1, -2], [0, 0, 0]), atol=1e-12)
    publish(broker, b"", b"\xff", b"x" * 100000, topic="robot/\u00e9")
    wait_for(lambda: path.status()["bad"] == 3)
    said = path.status()["last_error"]
    assert said.startswith(r"bad message from topic robot/\xe9: larger than 2048 bytes")
    publish(broker, *(at(float(i), seq=i) for i in range(200)))
    wait_for(lambda: path.camera_at(0).eye[0] == 199.0)
    assert path.status()["received"] == 204
    path.close()
    assert path.status()["link"] == "closed"
    path.open()
    wait_for(is_up(path))


@needs_broker
def test_a_retained_message_counts(brokers: Any, opened: Any) -> None:
    broker = brokers("allow_anonymous true")
    publish(broker, at(7.0), retain=True)
    path = opened(broker.port)
    wait_for(lambda: path.camera_at(0).eye[0] == 7.0)


@needs_broker
def test_broker_killed_and_back(brokers: Any, opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "edgegs.camera"):
        broker = brokers("allow_anonymous true")
        path = opened(broker.port)
        wait_for(is_up(path))
        publish(broker, at(1.0))
        wait_for(lambda: path.camera_at(0).eye[0] == 1.0)
        broker.kill()
        wait_for(lambda: path.status()["link"] == "retrying")
        wait_for(lambda: "no connection: Connection refused; is the broker running?" in path.status()["last_error"])
        assert path.camera_at(0).eye[0] == 1.0  # held
        broker.start()
        wait_for(is_up(path))
        assert path.status()["last_error"] is None
        publish(broker, at(2.0))
        wait_for(lambda: path.camera_at(0).eye[0] == 2.0)
    address = f"camera mqtt://127.0.0.1:{broker.port}/robot/pose"
    assert f"{address}: the connection broke" in caplog.text
    assert caplog.text.count(f"{address}: listening") == 2


def test_no_broker_at_all(opened: Any) -> None:
    path = opened(free_port())
    wait_for(lambda: path.status()["link"] == "retrying")
    assert path.status()["last_error"] == "no connection: Connection refused; is the broker running?"
    assert path.camera_at(0).eye[2] == -4


def test_what_is_no_broker(opened: Any) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        path = opened(server.getsockname()[1])
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()
        wait_for(lambda: path.status()["link"] == "retrying")
        assert "the connection broke" in path.status()["last_error"]
        path.close()


# ---- who one is


@needs_broker
def test_password(brokers: Any, opened: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tool = shutil.which("mosquitto_passwd", path=_PATH)
    if tool is None:
        pytest.skip("no mosquitto_passwd (apt install mosquitto): passwords are not tested")
    passwords = tmp_path / "passwords"
    subprocess.run([tool, "-b", "-c", str(passwords), "robot", SECRET], check=True, timeout=20, capture_output=True)
    broker = brokers("allow_anonymous false", f"password_file {passwords}")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(SECRET + "\n")
    wrong.write_text("not-" + SECRET)
    with caplog.at_level(logging.DEBUG):
        refused = opened(broker.port, username="robot", password_file=str(wrong))
        nobody = opened(broker.port)
        path = opened(broker.port, username="robot", password_file=str(right))
        wait_for(is_up(path))
        for other in (refused, nobody):
            wait_for(lambda other=other: other.status()["link"] == "retrying")
            assert "the broker refuses the connection: Not authorized" in other.status()["last_error"]
            assert "check username and password_file" in other.status()["last_error"]
        publish(broker, at(5.0), username="robot", password=SECRET)
        wait_for(lambda: path.camera_at(0).eye[0] == 5.0)
        refused.close()
        wrong.write_text(SECRET)  # read again at open
        refused.open()
        wait_for(is_up(refused))
    assert SECRET not in caplog.text
    assert SECRET not in json.dumps([p.status() for p in (refused, nobody, path)])


def test_a_refused_subscription_is_told(opened: Any) -> None:
    """mosquitto with an access list grants it and keeps the messages back; others say no, as this one."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        path = opened(server.getsockname()[1])
        connection, _ = server.accept()
        with connection:
            connection.settimeout(10)
            connection.recv(1024)
            connection.sendall(b"\x20\x02\x00\x00")  # CONNACK: accepted
            packet = connection.recv(1024)
            assert packet[0] == 0x82
            connection.sendall(b"\x90\x03" + packet[2:4] + b"\x80")  # SUBACK: failure
            wait_for(lambda: path.status()["link"] == "retrying")
            assert "the broker refuses the topic: " in path.status()["last_error"]
        path.close()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\nb\n", b"\xff\xfe", b"x" * 1025])
def test_password_file_must_hold_one_line(opened: Any, tmp_path: Path, content: Optional[bytes]) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    words = "no such file" if content is None else "must hold one line of UTF-8"
    with pytest.raises(ConfigError, match=words) as caught:
        opened(1883, username="robot", password_file=str(file))
    assert "password_file" in str(caught.value)


def test_a_password_in_the_clear_is_warned_of(opened: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    path = opened(1, host="192.0.2.1", username="robot", password_file=str(file))
    assert "the password crosses the network in the clear; set camera.path.tls" in caplog.text
    path._stopping.set()


# paho leaves the socket of a failed handshake to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@needs_broker
def test_tls(brokers: Any, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = shutil.which("openssl")
    if tool is None:
        pytest.skip("no openssl: TLS is not tested")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [tool, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=30,
    )  # fmt: skip
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    broker = Broker(tmp_path, "allow_anonymous true", f"certfile {certificate}", f"keyfile {key}")
    broker.start()
    try:
        stranger = opened(broker.port, tls=True)
        wait_for(lambda: stranger.status()["link"] == "retrying")
        assert "the broker's certificate is refused: " in stranger.status()["last_error"]
        assert "SSL_CERT_FILE" in stranger.status()["last_error"]
        stranger.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        path = opened(broker.port, tls=True)
        wait_for(is_up(path))
        assert path.status()["source"] == f"mqtts://127.0.0.1:{broker.port}/robot/pose"
        plain = opened(broker.port)
        wait_for(lambda: plain.status()["link"] == "retrying")
    finally:
        broker.kill()


# ---- what cannot work


@pytest.mark.parametrize("topic", ["", "a#", "#/a", "a/b+", "a\nb", "a\x00", "\u00e9" * 40000])
def test_no_topic(topic: str) -> None:
    with pytest.raises(ConfigError, match=r"camera\.path\.topic is no topic"):
        build_path({"kind": "mqtt", "topic": topic}, 64, 48)


@pytest.mark.parametrize("topic", ["#", "+", "+/+/#", "/a", "robots/\u00e9/pose"])
def test_topics(topic: str) -> None:
    assert build_path({"kind": "mqtt", "topic": topic}, 64, 48).status()["link"] == "closed"


def test_without_paho_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    with pytest.raises(ConfigError, match=r"needs paho-mqtt 2; pip install 'edgegs\[mqtt\]'"):
        build_path({"kind": "mqtt"}, 64, 48)
    build_path({"kind": "udp"}, 64, 48)
