"""Poses from an MQTT broker: one JSON object a message (see ``pose_message``). The only file that imports paho.

MQTT 3.1.1, QoS 0, a clean session: of poses only the newest counts, so none is worth sending twice. A retained message
counts as any other: the broker hands it over at the start, and it ages from then on.
"""

from __future__ import annotations

import collections
import re
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Deque, Optional, Tuple

from edgegs.camera.live import BURST, ROUND_S, Received
from edgegs.errors import ConfigError, DeviceError, InputError
from edgegs.files import read_regular
from edgegs.sinks.uri import is_loopback

KEEPALIVE_S = 15  # a broker that vanished without a word is noticed within twice that
CONNECT_S = 5.0
LOOP_S = 0.2
MAX_PASSWORD_BYTES = 1024


class Mqtt(Received):
    """Subscribes to a topic; connects again, with back-off, for ever.

    Args:
        host, port: of the broker. topic: a filter; ``+`` and ``#`` may stand for levels.
        username, password_file: where the broker asks for them. The file holds one line; it is read at ``open``.
        tls: encrypt, and check the broker's certificate against the system's authorities (``SSL_CERT_FILE`` names
            others).
        others: of ``Received``.

    Raises:
        ConfigError: paho-mqtt is not installed, or the topic is none.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 1883,
        topic: str = "edgegs/pose",
        username: Optional[str] = None,
        password_file: Optional[str] = None,
        tls: bool = False,
        **others: Any,
    ) -> None:
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"mqtt{'s' if tls else ''}://{shown}:{port}/{topic}", **others)
        try:
            import paho.mqtt.client as paho
            from paho.mqtt.enums import CallbackAPIVersion  # of 2.0 and newer
        except ImportError:
            text = f"camera {self.address}: needs paho-mqtt 2; pip install 'edgegs[mqtt]'"
            raise ConfigError(text) from None
        if not _is_filter(topic):
            text = f"camera {self.address}: camera.path.topic is no topic"
            raise ConfigError(text + "; write one such as robot/pose, with + or # for whole levels")
        self._paho, self._callback_version = paho, CallbackAPIVersion.VERSION2
        self._host, self._port, self._topic, self._tls = host, port, topic, tls
        self._username, self._password_file = username, password_file
        self._password: Optional[str] = None
        # From paho's callbacks, which run inside _listen:
        self._waiting: Deque[Tuple[bytes, str]] = collections.deque(maxlen=BURST)
        self._n_waiting = 0
        self._refused: Optional[str] = None

    def open(self) -> None:
        if self._thread is not None:
            return
        if self._password_file is not None:
            self._password = _read_password(self._password_file)
            if not self._tls and not is_loopback(self._host):
                text = "the password crosses the network in the clear; set camera.path.tls"
                self._say(self._link_limiter, text)
        super().open()

    def _wake(self) -> None:
        """Nothing to do: ``_listen`` looks every ``LOOP_S``. paho's own calls are not safe against its ``loop``."""

    def _listen(self, stopping: threading.Event) -> None:
        self._waiting.clear()
        self._n_waiting, self._refused = 0, None
        client = self._new_client()
        try:
            try:
                client.connect(self._host, self._port, KEEPALIVE_S)
            except ssl.SSLCertVerificationError as error:
                text = f"the broker's certificate is refused: {error.verify_message}"
                raise DeviceError(text + "; SSL_CERT_FILE names the authority that signed it") from None
            except OSError as error:
                raise DeviceError(f"no connection: {error.strerror or error}; is the broker running?") from None
            looked_at = 0.0
            while not stopping.is_set():
                left = looked_at + ROUND_S - time.monotonic() if self._n_waiting else LOOP_S
                code = client.loop(timeout=max(0.0, left))
                if self._refused is not None:
                    raise DeviceError(self._refused)
                if code != self._paho.MQTT_ERR_SUCCESS:
                    raise DeviceError(f"the connection broke: {self._paho.error_string(code)}")
                if self._n_waiting and time.monotonic() - looked_at >= ROUND_S:
                    looked_at = time.monotonic()
                    n, self._n_waiting = self._n_waiting, 0
                    newest = list(self._waiting)
                    self._waiting.clear()
                    self._take(newest, n)
        finally:
            client.disconnect()  # sends the farewell, too

    def _new_client(self) -> Any:
        client = self._paho.Client(self._callback_version, protocol=self._paho.MQTTv311, clean_session=True)
        client.connect_timeout = CONNECT_S
        if self._username is not None:
            client.username_pw_set(self._username, self._password)
        if self._tls:
            client.tls_set()
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        return client

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._refused = f"the broker refuses the connection: {reason}; check username and password_file"
        else:
            client.subscribe(self._topic, qos=0)

    def _on_subscribe(self, client: Any, userdata: Any, mid: int, reasons: Any, properties: Any) -> None:
        if any(reason.is_failure for reason in reasons):
            self._refused = f"the broker refuses the topic: {reasons[0]}; check its access list"
        else:
            self._is_up()

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        self._n_waiting += 1
        self._waiting.append((message.payload, f"topic {ascii(message.topic)[1:-1][:100]}"))


def _is_filter(topic: str) -> bool:
    """Whether one may subscribe to it: MQTT 3.1.1, section 4.7."""
    levels = topic.split("/")
    wild = all(level in ("+", "#") or not re.search("[+#]", level) for level in levels) and "#" not in levels[:-1]
    return wild and 0 < len(topic.encode("utf-8", "replace")) <= 65535 and topic.isprintable()


def _read_password(file: str) -> str:
    what = "camera.path.password_file"
    try:
        raw = read_regular(Path(file), MAX_PASSWORD_BYTES + 1, what)
        lines = raw.decode("utf-8").splitlines()
    except InputError as error:
        raise ConfigError(str(error)) from None
    except UnicodeDecodeError:
        lines = []
    if len(raw) > MAX_PASSWORD_BYTES or len(lines) != 1 or not lines[0]:
        shown = ascii(file)[1:-1]
        raise ConfigError(f"{what} {shown}: must hold one line of UTF-8, at most {MAX_PASSWORD_BYTES} bytes")
    return lines[0]
