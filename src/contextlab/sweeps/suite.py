"""What a sweep runs: the options of `bench`, of which some name several values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from contextlab import files, seals
from contextlab.errors import UserError, check_known


def _single(value: object) -> object:
    """A text as it is in a list of texts."""
    return (value,) if isinstance(value, str) else value


def _split(value: object) -> object:
    """Names in a text with commas, as on the command line; one number stands for a list of it."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return (value,) if isinstance(value, int) else value


Texts = Annotated[tuple[str, ...], pydantic.BeforeValidator(_single)]
Names = Annotated[tuple[str, ...], pydantic.Field(min_length=1), pydantic.BeforeValidator(_split)]
Seeds = Annotated[tuple[int, ...], pydantic.Field(min_length=1), pydantic.BeforeValidator(_split)]
Positive = Annotated[int, pydantic.Field(ge=1)]


class Suite(pydantic.BaseModel):
    """The options of a sweep, under the names that they have in the file and on the command line.

    Attributes:
        method: as in `grammar.items`.
        task: as in `grammar.items`.
        backbone: names.
        seed: of the methods' random numbers.
        context: controls.
        set: settings for all methods and tasks that have them.
        count: whether FLOPs and peak memory are counted.
        out: a folder, or an address that fsspec knows.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    method: Texts
    task: Texts
    backbone: Names = ("smollm2-135m",)
    seed: Seeds = (0,)
    context: Names = ("own",)
    split: str | None = None
    history: Positive | None = None
    limit: Positive | None = None
    tokens: Positive | None = None
    set: dict[str, Any] = {}
    data: Path | None = None
    device: str | None = None
    dtype: str | None = None
    quantise: str | None = None
    batch: int | str = 1
    count: bool = True
    out: str = "runs"

    @classmethod
    def out_of(cls, file: Path | None, options: Mapping[str, Any]) -> str:
        """Where the sweep of these options is stored, also where they name nothing to run.

        Raises:
            UserError: as `of`.
        """
        nothing = {"method": "", "task": ""}
        return cls.of(file, nothing | dict(options)).out

    @classmethod
    def of(cls, file: Path | None, options: Mapping[str, Any]) -> Self:
        """The suite of a file, with options in place of the file's.

        Raises:
            UserError: when the file cannot be read, or an option has a wrong name or value.
        """
        named = {} if file is None else _read(file)
        check_known("option of a sweep", named, cls.model_fields)
        try:
            return cls.model_validate(named | dict(options))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            if first["type"] == "missing":
                raise UserError(f"No {name} is named: give at least one with --{name}, or in the file.") from None
            raise UserError(f"--{name} of the sweep is not valid ({seals.first_fault(error)}): correct it.") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({files.reason(error)}): name a suite that exists.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid TOML ({error}): correct it.") from None
