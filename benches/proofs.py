"""Makes `contextlab/benchmarks/data/proofs.json` from a data folder with verified files of the publishers.

Every file must have the digest in the folder's `SHA256SUMS`; DATA.md beside it says which sets are the publishers'. Of
the others, those in the layouts of StreamingQA and MSC are included too, so that their notes name them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from contextlab import registry
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.fetch import SUMS, read_sums
from contextlab.errors import UserError

SPLITS = {
    "squad": ["512"],
    "streamingqa": ["512"],
    "msc": ["self-instruct"],
    "msc-ppl": ["session-5"],
    "situatedqa": ["dev", "test"],
    "locomo": ["all"],
    "wikitext": ["valid", "test"],
    "pg22": ["S1", "S2", "S3", "S4"],
    "metaicl": ["k1"],
    "sst2": ["n2"],
    "agnews": ["n2"],
    "babilong": [f"qa{number}(tokens=0,samples=1)" for number in range(1, 11)],
    "key-value": ["75", "140"],
    "many-label": ["trec_coarse", "banking77", "clinc150", "nlu"],
    "qmsum": ["val", "test"],
    "squality": ["train", "dev", "test"],
    "quality": ["leval"],
    "leval": ["scientific_qa", "natural_question", "multidoc_qa", "topic_retrieval_longchat"],
    "longeval": ["lines-200", "lines-300", "lines-400", "lines-500", "lines-600", "topics"],
    "multidoc": ["10"],
    "icl": ["sst2", "sst2(part=dev)", "sst5", "sst5(part=dev)", "mr", "subj", "mpqa", "trec", "agnews"],
}


def collected(data: Path) -> dict[str, str]:
    """By group, the digests that loaders verify while they read a folder."""
    groups: dict[str, set[str]] = defaultdict(set)

    def collect(group: str, items: Iterable[str]) -> bool:
        groups[group] |= set(items)
        return True

    verified, proofs.verified = proofs.verified, collect
    try:
        for name, splits in SPLITS.items():
            for text in splits:
                task, split = registry.task_and_split(name, text)
                task.load(split, data)
    finally:
        proofs.verified = verified
    return {group: proofs.packed(items) for group, items in sorted(groups.items())}


def check(data: Path) -> None:
    """Compare a folder with its list of digests.

    Raises:
        UserError: when a file is missing or has another digest.
    """
    for name, sha256 in read_sums(data / SUMS).items():
        if hashlib.sha256((data / name).read_bytes()).hexdigest() != sha256:
            raise UserError(f"{data / name} is not the file that {SUMS} lists: replace it with an intact copy.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    check(data)
    print(json.dumps(collected(data), indent=0))


if __name__ == "__main__":
    main()
