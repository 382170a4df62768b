from __future__ import annotations

from pathlib import Path

import pytest
import torch
from installed import METHODS
from safetensors.torch import load_file, save_file

from contextlab import backbone as backbones
from contextlab import registry, tensors
from contextlab.errors import UserError
from contextlab.methods.generative_adapter import Adapter, GenerativeAdapter


def unaligned(held: dict[str, torch.Tensor]) -> list[str]:
    """Names of the tensors whose memory does not begin at a multiple of 64 bytes."""
    return [name for name, tensor in held.items() if tensor.numel() and tensor.data_ptr() % 64]


def awkward(count: int = 40) -> dict[str, torch.Tensor]:
    """Tensors of odd sizes, of which a file cannot begin every one at a multiple of 64 bytes."""
    return {f"t{n:02}": torch.randn(n % 7 + 1, 3) for n in range(count)}


def test_what_is_read_is_what_was_written_in_memory_of_its_own(tmp_path: Path) -> None:
    written = awkward()
    save_file(written, tmp_path / "file.safetensors", metadata={"made by": "a test"})
    read, about = tensors.read(tmp_path / "file.safetensors")
    assert about == {"made by": "a test"}
    assert read.keys() == written.keys()
    assert all(torch.equal(read[name], written[name]) for name in written)
    assert unaligned(read) == []


@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"\xff" * 64, (100).to_bytes(8, "little") + b"{}"])
def test_a_file_that_cannot_be_read_is_named_in_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.safetensors cannot be read .*: give an intact safetensors file\.$"):
        tensors.read(path)


def test_a_folder_is_no_file_of_tensors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        tensors.read(tmp_path)


KINDS = {
    "wide": torch.tensor(3.5, dtype=torch.float64),
    "half": torch.randn(3, 4).half(),
    "brain": torch.randn(3).to(torch.bfloat16),
    "turned": torch.randn(4, 3).t(),
    "part": torch.randn(9)[2:5],
    "empty": torch.zeros(0, 3),
    "ids": torch.arange(5),
    "small": torch.arange(3, dtype=torch.int8),
    "marks": torch.tensor([True, False]),
    "bytes": torch.arange(4, dtype=torch.uint8),
    "complex": torch.randn(2, dtype=torch.complex64),
}


def test_what_is_written_is_read_here_and_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors.write(path, KINDS, {"b": "é", "a": "1"})
    read, about = tensors.read(path)
    assert about == {"a": "1", "b": "é"}
    for held in (read, load_file(path)):
        assert held.keys() == KINDS.keys()
        assert all(torch.equal(held[name], KINDS[name]) and held[name].dtype == KINDS[name].dtype for name in KINDS)


def test_equal_tensors_and_metadata_give_equal_files(tmp_path: Path) -> None:
    about = {f"field {n}": str(n) for n in range(20)}
    tensors.write(tmp_path / "one", KINDS, about)
    for n in range(5):
        turned = dict(reversed(KINDS.items())), dict(reversed(about.items()))
        tensors.write(tmp_path / "two", *(turned if n % 2 else (KINDS, about)))
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_every_flipped_bit_of_a_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors.write(path, {"a": torch.randn(5), "é": torch.arange(3)}, {"kind": "a state", "é": "ü"})
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(UserError, match=str(path)):
            tensors.read(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [('"shape":[2,3]', '"shape":[3,2]'), ('"shape":[2,3]', '"shape":[6]'), ('"F32"', '"I32"'), ('"a":{', '"b":{')],
    ids=["shape", "dimensions", "type", "name"],
)
def test_the_same_bytes_as_another_tensor_are_seen(before: str, after: str, tmp_path: Path) -> None:
    """Also where the library reads the file without complaint."""
    path = tmp_path / "file"
    tensors.write(path, {"a": torch.arange(6).view(2, 3).float()})
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + length].decode()
    assert header.count(before) == 1
    path.write_bytes(whole[:8] + header.replace(before, after).strip().ljust(length).encode() + whole[8 + length :])
    assert len(load_file(path)) == 1
    with pytest.raises(UserError, match="its seal is broken"):
        tensors.read(path)


def test_only_named_kinds_need_a_seal(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file({"a": torch.zeros(2)}, path, metadata={"kind": "ours"})
    tensors.read(path)
    tensors.read(path, sealed=("other",))
    with pytest.raises(UserError, match="has no seal"):
        tensors.read(path, sealed=("ours",))


def test_a_module_is_aligned_in_place_and_its_ties_stay() -> None:
    raw = torch.zeros(100)
    module = torch.nn.Module()
    module.a = torch.nn.Parameter(raw[1:33])
    module.b = module.a
    module.register_buffer("c", raw[35:50])
    before = module.a
    tensors.align(module)
    assert unaligned(dict(module.named_parameters())) == unaligned(dict(module.named_buffers())) == []
    assert module.a is before
    assert module.b is module.a
    assert torch.equal(module.a, torch.zeros(32))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_a_loaded_backbone_is_aligned(name: str, tmp_path: Path) -> None:
    small = backbones.load(name)
    small.model.save_pretrained(tmp_path)
    small.tokenizer.save_pretrained(tmp_path)
    model = backbones.load(str(tmp_path)).model
    assert unaligned(dict(model.named_parameters()) | dict(model.named_buffers())) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_state_is_aligned(name: str, tmp_path: Path) -> None:
    method = registry.method_class(name)(backbones.load("tiny-llama", device="cpu"))
    state, _ = method.read(method.start(), torch.arange(150)[None])
    state.save(tmp_path / "state.safetensors")
    assert unaligned(method.load_state(tmp_path / "state.safetensors").tensors()) == []


def test_a_loaded_adapter_is_aligned(tmp_path: Path) -> None:
    method = GenerativeAdapter(backbones.load("tiny-llama", device="cpu"))
    state, _ = method.read(method.start(), torch.arange(150)[None])
    method.adapter(state).save(tmp_path / "adapter.safetensors")
    loaded = Adapter.load(tmp_path / "adapter.safetensors", method.generator)
    assert unaligned({"S": loaded.S_BLRR}) == []


def test_a_derived_value_is_computed_once_until_any_of_its_weights_changes() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    derived, computed = tensors.Derived[float](), []

    def total() -> float:
        computed.append((first.weight.sum() + second.weight.sum()).item())
        return computed[-1]

    assert derived.of(total, first, second) == derived.of(total, first, second)
    assert len(computed) == 1
    for module in (first, second):
        with torch.no_grad():
            module.weight.add_(1)
        assert derived.of(total, first, second) == (first.weight.sum() + second.weight.sum()).item()
    assert len(computed) == 3
    second.load_state_dict(first.state_dict())
    assert derived.of(total, first, second) == pytest.approx(2 * first.weight.sum().item())


def test_a_derived_value_may_be_none() -> None:
    module, calls = torch.nn.Linear(1, 1), []
    derived = tensors.Derived[None]()
    for _ in range(2):
        assert derived.of(lambda: calls.append(1), module) is None
    assert calls == [1]


def matrices() -> dict[str, torch.Tensor]:
    """Weights with rows of all kinds, wider and narrower types, and tensors that are not worth 8 bits."""
    rows = torch.randn(40, 64) * torch.logspace(-30, 6, 40)[:, None]
    rows[3], rows[7], rows[11] = 0.0, -2.5, torch.zeros(64).index_fill(0, torch.tensor([5]), 1e-3)
    return {
        "rows": rows,
        "half": torch.randn(300, 8).half(),
        "maps": torch.randn(3, 64, 64).double(),
        "bias": torch.randn(2000),
        "small": torch.randn(9, 64),
        "steps": torch.arange(2000).view(2, 1000),
    }


def test_in_8_bits_no_number_moves_by_more_than_half_of_the_scale_of_its_row(tmp_path: Path) -> None:
    held = matrices()
    stored = tensors.compact(held, torch.int8)
    tensors.write(tmp_path / "file", stored)
    read, _ = tensors.read(tmp_path / "file")
    assert read.keys() == held.keys()
    for name in ("rows", "half", "maps"):
        whole, scale = held[name].double(), stored[name + tensors.SCALE].double()
        assert (stored[name].dtype, read[name].dtype) == (torch.int8, torch.float32)
        assert scale.shape == whole.shape[:-1]
        assert bool(((read[name].double() - whole).abs() <= scale[..., None] / 2).all())
        # The scale is the smallest that reaches the largest number of a row, to 8 binary digits.
        largest = whole.abs().amax(-1)
        assert bool((largest <= 127 * scale).all())
        assert bool((127 * scale <= largest * (1 + 2**-7)).all())


def test_rows_of_equal_numbers_and_of_zeros_keep_their_signs_and_zeros(tmp_path: Path) -> None:
    tensors.write(tmp_path / "file", tensors.compact(matrices(), torch.int8))
    rows = tensors.read(tmp_path / "file")[0]["rows"]
    assert not rows[3].any()
    assert bool((rows[7] == rows[7, 0]).all())
    assert rows[7, 0] == pytest.approx(-2.5, rel=2**-7)
    assert rows[11].nonzero().tolist() == [[5]]


def test_what_is_small_no_matrix_or_not_finite_has_no_8_bits(tmp_path: Path) -> None:
    held = {**matrices(), "open": torch.full((64, 64), -torch.inf), "unknown": torch.full((64, 64), torch.nan)}
    stored = tensors.compact(held, torch.int8)
    assert stored["steps"].dtype == torch.int64
    for name in ("bias", "small", "open", "unknown"):
        assert stored[name].dtype == torch.float16
        assert name + tensors.SCALE not in stored


def test_8_bits_take_half_of_16(tmp_path: Path) -> None:
    held = {f"{n}": torch.randn(64, 512) for n in range(8)}
    for dtype in (torch.float16, torch.int8):
        tensors.write(tmp_path / str(dtype), tensors.compact(held, dtype))
    half, eighth = ((tmp_path / str(dtype)).stat().st_size for dtype in (torch.float16, torch.int8))
    assert eighth < 0.51 * half


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"a:scale": torch.full((40,), torch.inf).bfloat16()}, "a:scale is not finite"),
        ({"a:scale": torch.full((40,), torch.nan).bfloat16()}, "a:scale is not finite"),
        ({"a:scale": torch.full((40,), -0.5).bfloat16()}, "a:scale is not finite and positive"),
        ({"a:scale": torch.ones(40, dtype=torch.int8)}, "a:scale is not finite"),
        ({"a:scale": torch.ones(39)}, "a:scale is beside no integers that it fits"),
        ({"a:scale": torch.tensor(1.0)}, "a:scale is beside no integers that it fits"),
        ({"a": torch.ones(40, 64)}, "a:scale is beside no integers that it fits"),
        ({"b:scale": torch.ones(40)}, "b:scale is beside no integers that it fits"),
    ],
)
def test_scales_that_fit_nothing_are_named_in_one_sentence(
    change: dict[str, torch.Tensor], reason: str, tmp_path: Path
) -> None:
    stored = tensors.compact({"a": torch.randn(40, 64)}, torch.int8)
    tensors.write(tmp_path / "file", {**stored, **change})
    with pytest.raises(UserError, match=rf"file is damaged \({reason}.*\): write it again\.$"):
        tensors.read(tmp_path / "file")
