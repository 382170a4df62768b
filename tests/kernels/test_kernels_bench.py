from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from contextlab.accounting.memory import PeakMemory
from contextlab.cli.main import main
from contextlab.kernels import bench, bench_cases
from contextlab.kernels.dispatch import forced

CPU = torch.device("cpu")
CEILING = {"copy_bytes_per_second": 1e9, "matmul_flops_per_second": 1e9}


def peak_of(run: Any) -> Any:
    with PeakMemory() as peak:
        run()
    return peak.peak_bytes


def cases(op: Any, **changed: Any) -> Any:
    size = dataclasses.replace(bench_cases.SIZES["toy"][op][0], **changed)
    return list(bench_cases.CASES[op](size, CPU))


@pytest.mark.parametrize("op", bench_cases.CASES)
def test_every_form_is_right_and_measured(op: str) -> None:
    for case in cases(op, T=20):
        records = bench.measure(case, CPU, CEILING, peak_of, repeats=1)
        assert [record["form"] for record in records][:2] == ["reference", "torch"]
        for record in records:
            assert record["right"], record
            assert record["form"] in case.beside or record["flops"] == case.flops
            assert record["seconds"] > 0
            assert record["share_of_matmul"] == pytest.approx(record["flops"] / record["seconds"] / 1e9)
        assert records[0]["times_faster"] == 1


@pytest.mark.parametrize("op", bench_cases.CASES)
def test_a_wrong_output_gets_no_speed(op: str) -> None:
    case = cases(op)[0]

    def spoiled(name: str) -> Any:
        def run() -> Any:
            result = case.runs[name]()
            return (result[0], result[1] + 1) if isinstance(result, tuple) else result + 1

        return run

    spoiled_case = dataclasses.replace(case, runs={**case.runs, "torch": spoiled("torch")})
    by_form = {r["form"]: r for r in bench.measure(spoiled_case, CPU, CEILING, peak_of, repeats=1)}
    assert by_form["reference"]["right"]
    assert not by_form["torch"]["right"]
    assert "seconds" not in by_form["torch"]


def test_a_chunk_retrieved_twice_is_wrong() -> None:
    case = cases("chunk_topk")[0]
    ids, score = case.runs["reference"]()
    ids[..., 1] = ids[..., 0]
    assert case.error((ids, score)) == float("inf")


@pytest.mark.parametrize("op", ["joint_memory_attention", "chunk_topk"])
def test_blocks_take_an_eighth_of_the_memory_at_a_bank_of_65536_tokens(op: str) -> None:
    case = cases(op, H=4, K=4, D=64, T=512, m=16, n=16384)[0]
    peaks = {}
    for form in ("reference", "torch"):
        with torch.no_grad(), forced(form):
            peaks[form] = peak_of(case.runs[form])
    assert peaks["torch"] * 8 <= peaks["reference"]


def test_blocks_of_eva_take_memory_that_is_linear_in_tokens() -> None:
    peaks = []
    for length in (512, 2048):
        case = cases("eva_attention", H=4, K=4, D=64, T=length, W=128, c=64)[0]
        with torch.no_grad(), forced("reference"):
            reference = peak_of(case.runs["reference"])
        with torch.no_grad(), forced("torch"):
            peaks.append(peak_of(case.runs["torch"]))
    assert peaks[1] < 5 * peaks[0]
    assert peaks[1] * 8 <= reference


def test_other_operations_are_measured_by_their_own_work_and_not_compared() -> None:
    case = cases("eva_attention", T=64, c=8, W=16)[0]
    records = {r["form"]: r for r in bench.measure(case, CPU, CEILING, peak_of, repeats=1)}
    assert records["SDPA, equal work"]["flops"] == case.flops
    assert records["SDPA, causal over all"]["flops"] == 2 * (64 * 65 // 2) * 4 * 16
    assert records["SDPA, causal over all"]["relative_error"] is None


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "bench", "--sizes", "toy", "--repeats", "1", "--device", "cpu", "--op", "chunk_topk"]) == 0
    assert "chunk_topk" in capsys.readouterr().out
    assert main(["kernels", "bench", "--sizes", "toy", "--repeats", "1", "--device", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {record["op"].split()[0] for record in report["results"]} == set(bench_cases.CASES)
    assert set(report["ceilings"]) == {"copy_bytes_per_second", "matmul_flops_per_second"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--op", "chunk_top"], "There is no operation 'chunk_top': did you mean 'chunk_topk'?"),
        (["--sizes", "toi"], "There is no size 'toi': did you mean 'toy'?"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "bench", "--device", "cpu", *arguments]) == 2
    assert capsys.readouterr().err.strip() == f"contextlab: {sentence}"


def test_a_wrong_kernel_ends_the_command_with_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench.TOLERANCE, torch.float32, -1.0)
    assert main(["kernels", "bench", "--sizes", "toy", "--device", "cpu", "--op", "chunk_topk"]) == 2
    printed = capsys.readouterr()
    assert "wrong by" in printed.out
    assert "gives a wrong output here" in printed.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "bench", "--device", "cuda"]) == 2
    assert "Device 'cuda' is not available here: use --device cpu." in capsys.readouterr().err
