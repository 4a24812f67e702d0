"""What leaves this machine in a bug report: no secrets, and nothing that names its owner, its network or its place.

Replaced are: the secrets that are known (tokens and passwords in the files that a configuration names, and in the
environment); values of keys that are called token, password, secret and the like; Authorization headers, Bearer tokens,
private keys; user and password of every URI, and secret query parameters; the names of home folders and of users; the
host's name; hardware addresses; every IP address but loopback, any and multicast ones (equal ones get equal names);
e-mail addresses; serial numbers and UUIDs of disks. Only the standard library is needed: a bug report is wanted most
where packages are missing.

Kept are: paths below the home folder, names of scenes and outputs, ports, process ids, boot ids, sha256 sums, versions.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import pwd
import re
import socket
import urllib.parse
from typing import Any, Dict, Iterable, List, Mapping, Match, Optional, Tuple

MASK = "***"

#: Shorter secrets are too likely to be a part of ordinary words, letters.
LEAST_SECRET = 4

_WORD = r"token|password|passwd|passphrase|passcode|secret|api[_-]?key|private[_-]?key|access[_-]?key|credential|auth"
#: key = value, key: value, "key": "value", KEY='a b', and those within quoted text; ``…_file`` names a file and is
#: none. Of a quote that does not end, the line is hidden: too much hidden does no harm.
_KEYED = re.compile(
    rf"""(?P<key>(?:{_WORD})s?(?:\\*["'])?[ \t]*(?:=|:(?!//))[ \t]*)"""
    r"""(?P<value>"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\\+["'].*?\\+["'](?![^\s,;}\]])|\\*["'][^\n]*|\S+)""",
    re.IGNORECASE,
)
_SECRET_KEY = re.compile(rf"(?:{_WORD})s?$", re.IGNORECASE)
#: A sentence as a password, as YAML and people write it.
_PHRASE = re.compile(r"((?:password|passwd|passphrase|secret)[ \t]*:[ \t]+)[^\s\"'][^\n]*", re.IGNORECASE)
_HEADER = re.compile(r"""(\b(?:proxy-)?authorization["']?\s*[:=]\s*["']?)[^"'\r\n]+""", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic|Digest)(\s+)[A-Za-z0-9+/=._~-]{6,}")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_QUERY = re.compile(rf"([?&;](?:[\w-]{{0,32}}[_-])?(?:{_WORD}|key|sig|signature)s?=)[^&;\s\"']+", re.IGNORECASE)
_UNQUOTED = re.compile(r"[^\s\"'<>]+")
_SCHEME = re.compile(r"\w:/{1,2}(?=[^@/])")
_HOME = re.compile(r"(/(?:home|Users|media|run/media|var/home)/)[^/\s\"':;,()]+")
_MAC = re.compile(r"(?<![0-9A-Za-z:-])[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}(?![0-9A-Za-z:-])")
#: Four numbers that follow == or a package's name are a version.
_IPV4 = re.compile(r"(?<![\w.])(?<!==)(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:%\w+)?(?![\w:])")
_EMAIL = re.compile(r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}\b")
_NOT_EMAIL = re.compile(r"\.(?:service|socket|slice|target|scope|mount|timer|path|device|swap)$")
_SERIAL = re.compile(r"(\bi?serial(?:[ _-]?(?:number|no))?\s*[:=]\s*)[^\s,;\"']+", re.IGNORECASE)
_DISK_UUID = re.compile(r"\b((?:PART)?UUID=|by-(?:part)?uuid/)[0-9A-Fa-f-]{4,}")

#: Names that many machines and users have: replacing them would wreck ordinary words.
_COMMON = {"localhost", "root", "edgegs", "nobody", "user", "ubuntu", "nvidia", "jetson", "debian", "linux", "host"}


class Redactor:
    """
    Args:
        secrets: texts that must not appear in any form.
        names: users' names, which become USER.
        hosts: this machine's names, which become HOST.
    """

    def __init__(self, secrets: Iterable[str] = (), names: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= LEAST_SECRET for form in _forms(secret)}
        self._secrets = _any_of(forms)
        self._names = _any_of(_sensible(names), whole=True)
        self._hosts = _any_of(_sensible(hosts), whole=True)
        self._addresses: Dict[str, str] = {}

    def __call__(self, text: str) -> str:
        if self._secrets:
            text = self._secrets.sub(MASK, text)
        text = _KEY_BLOCK.sub(MASK, text)
        text = _HEADER.sub(r"\1" + MASK, text)
        text = _BEARER.sub(r"\1\2" + MASK, text)
        text = _UNQUOTED.sub(_masked_userinfo, text)
        text = _QUERY.sub(r"\1" + MASK, text)
        text = _PHRASE.sub(r"\1" + MASK, text)
        text = _KEYED.sub(_masked_value, text)
        text = _SERIAL.sub(r"\1" + MASK, text)
        text = _DISK_UUID.sub(r"\1" + MASK, text)
        text = _EMAIL.sub(lambda match: match.group() if _NOT_EMAIL.search(match.group()) else "EMAIL", text)
        text = _HOME.sub(r"\1USER", text)
        text = _MAC.sub("MAC", text)
        text = _IPV4.sub(self._address, text)
        text = _IPV6.sub(self._address, text)
        if self._hosts:
            text = self._hosts.sub("HOST", text)
        if self._names:
            text = self._names.sub("USER", text)
        return text

    def document(self, value: Any) -> Any:
        """Plain data with every string redacted, and every value whose key says that it is a secret."""
        if isinstance(value, dict):
            hidden = {key for key, item in value.items() if item is not None and _SECRET_KEY.search(str(key))}
            return {self(str(key)): MASK if key in hidden else self.document(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.document(item) for item in value]
        return self(value) if isinstance(value, str) else value

    def _address(self, match: Match[str]) -> str:
        text = match.group()
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified or address.is_multicast or str(address) == "255.255.255.255":
            return text
        return self._addresses.setdefault(str(address), f"IP-{len(self._addresses) + 1}")


def for_this_machine(files: Iterable[Optional[str]], environ: Mapping[str, str] = os.environ) -> Redactor:
    """A redactor that knows this machine, this user, and the secrets in ``files`` and in the environment."""
    from edgegs.errors import EdgegsError
    from edgegs.files import open_regular

    secrets = [value for key, value in environ.items() if _SECRET_KEY.search(key)]
    for path in files:
        if path is None:
            continue
        with contextlib.suppress(EdgegsError, OSError):
            with open_regular(path, "secret") as file:
                content = os.read(file.fileno(), 4096).decode("utf-8", "replace")
            secrets += [content.strip(), *content.split()]
    return Redactor(secrets, _users(environ), _hosts())


def _users(environ: Mapping[str, str]) -> List[str]:
    names = [environ.get(key, "") for key in ("USER", "LOGNAME", "SUDO_USER")]
    names.append(os.path.basename(environ.get("HOME", "").rstrip("/")))
    with contextlib.suppress(KeyError):
        names.append(pwd.getpwuid(os.getuid()).pw_name)
    with contextlib.suppress(OSError):
        names += [user.pw_name for user in pwd.getpwall() if 1000 <= user.pw_uid < 60000]
    return names


def _hosts() -> List[str]:
    name = socket.gethostname()
    names = [name, name.partition(".")[0]]
    with contextlib.suppress(OSError):
        with open("/etc/hostname", encoding="utf-8", errors="replace") as file:
            names.append(file.read(256).strip())
    return names


def _sensible(names: Iterable[str]) -> List[str]:
    """Those that are long and rare enough to be replaced wherever they stand as a word."""
    return [name for name in names if len(name) >= 3 and name.lower() not in _COMMON and not name.isdigit()]


def _forms(secret: str) -> Tuple[str, ...]:
    """A secret as it may be written: plain, in JSON, in a URI."""
    return secret, json.dumps(secret)[1:-1], urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret)


def _any_of(texts: Iterable[str], whole: bool = False) -> Optional[re.Pattern[str]]:
    ordered = sorted({text for text in texts if text}, key=lambda text: (-len(text), text))
    if not ordered:
        return None
    either = "|".join(map(re.escape, ordered))
    if not whole:
        return re.compile(either)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])", re.IGNORECASE)


def _masked_userinfo(match: Match[str]) -> str:
    """Up to the last @: a password may hold a slash or an @ itself."""
    word = match.group()
    end = word.rfind("@")
    scheme = _SCHEME.search(word, 0, end) if end > 0 else None
    return word if scheme is None else word[: scheme.end()] + MASK + word[end:]


def _masked_value(match: Match[str]) -> str:
    value = match.group("value")
    if value.lower() in ("null", "none", "true", "false") or re.match(r"\*\*\*(?:[&;@]|$)", value):
        return match.group()
    quote = value[0] if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1 else ""
    return f"{match.group('key')}{quote}{MASK}{quote}"
