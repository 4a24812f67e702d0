"""The kinds of values that the models are made of, and the models' base."""

from __future__ import annotations

import ipaddress
import math
import os
import re
from typing import Any, Optional, Tuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import Annotated

from edgegs.capture.uri import CaptureUri
from edgegs.capture.uri import parse as parse_capture
from edgegs.errors import DeviceError
from edgegs.files import check_path
from edgegs.kernels.variants import variant
from edgegs.sinks.uri import OutputUri, UriError, parse

Y_DOWN_UP = (0.0, -1.0, 0.0)  # "up" in a scene whose y axis points down, as 3DGS scenes' do


def problem(text: str, suggestion: str = "", key: str = "") -> PydanticCustomError:
    """A validator's complaint; ``key`` names the field below the validated value that it is about."""
    return PydanticCustomError("edgegs", "{text}", {"text": text, "suggestion": suggestion, "key": key})


def base_dir(info: ValidationInfo) -> Optional[str]:
    return info.context.get("base_dir") if isinstance(info.context, dict) else None


def _resolved(path: str, info: ValidationInfo) -> str:
    """``path`` against the configuration's folder, without ``..``; as it stands where no folder is known."""
    base = base_dir(info)
    return path if base is None else os.path.normpath(os.path.join(base, path))


def _path(value: str, info: ValidationInfo) -> str:
    wrong = check_path(value)
    if wrong is not None:
        raise problem(*wrong)
    return _resolved(value, info)


def _triple(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) != 3:
            raise problem("must be three numbers", "write [x, y, z]")
        return tuple(value)
    return value


def _direction(value: Tuple[float, float, float]) -> Tuple[float, float, float]:
    if math.hypot(value[0], math.hypot(value[1], value[2])) < 1e-9:
        raise problem("must not be zero", "write a direction, such as [0, -1, 0]")
    return value


def frozen_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,253}", value):
        raise problem("not the name or the address of a machine", "write a name such as lobby.example.org")
    if re.fullmatch(r"[0-9.]+", value) or ":" in value:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise problem("is no IP address", "write one such as 192.168.1.5") from None
    return value


def _variant(value: str) -> str:
    """There has to be one of that name; whether scene and backend suit it is seen where they are known."""
    try:
        variant(value)
    except DeviceError as error:
        # the report names the key itself
        raise problem(re.sub(r"^render\.variant: ", "", str(error)), "or write auto") from None
    return value


def _x_display(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,64}:[0-9]{1,5}(\.[0-9]{1,3})?", value):
        raise problem("not an X display", 'write ":0", as in the DISPLAY of a terminal on that screen')
    return value


def _uri(value: str, info: ValidationInfo) -> OutputUri:
    try:
        uri = parse(value)
    except UriError as error:
        raise problem(error.text, error.suggestion) from None
    if not uri.is_file:
        return uri
    path = _resolved(uri.path, info)
    if uri.kind == "frames" and "%" in os.path.dirname(path):
        raise problem("the configuration's folder has a % in its name", "write frames to another folder")
    return uri.with_path(path)


def _capture(value: str, info: ValidationInfo) -> CaptureUri:
    try:
        uri = parse_capture(value)
    except UriError as error:
        raise problem(error.text, error.suggestion) from None
    return uri.with_path(_resolved(uri.path, info)) if uri.is_file else uri


def _checked_text(check: Any) -> Any:
    """A type that is text in the file and in what is shown of it, and what ``check`` makes of it in between."""

    def schema(_: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        shown = core_schema.to_string_ser_schema()
        return core_schema.with_info_after_validator_function(check, handler(str), serialization=shown)

    return GetPydanticSchema(schema)


def defaults() -> Any:
    """Default of a section. Data, not an instance: so its paths are resolved like those of a file."""
    return {}


Path = Annotated[str, AfterValidator(_path)]
Uri = Annotated[OutputUri, _checked_text(_uri)]
Source = Annotated[CaptureUri, _checked_text(_capture)]
Coordinate = Annotated[float, Field(ge=-1e9, le=1e9)]
Point = Annotated[Tuple[Coordinate, Coordinate, Coordinate], BeforeValidator(_triple)]
Direction = Annotated[Point, AfterValidator(_direction)]
Unit = Annotated[float, Field(ge=0, le=1)]
Colour = Annotated[Tuple[Unit, Unit, Unit], BeforeValidator(_triple)]
Fov = Annotated[float, Field(ge=1, le=170)]
Seconds = Annotated[float, Field(ge=0, le=86400)]
Period = Annotated[float, Field(ge=0.1, le=86400)]
Fps = Annotated[float, Field(ge=0, le=1000)]
Side = Annotated[int, Field(ge=16, le=8192)]  # two of them are at most 2**26 pixels
Host = Annotated[str, AfterValidator(_host)]
XDisplay = Annotated[str, AfterValidator(_x_display)]
Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
VariantName = Annotated[Name, AfterValidator(_variant)]


class Section(BaseModel):
    """Base of all models."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
    )
