"""The data sets of suites for long contexts: HELMET's in-context learning, L-Eval, LongEval and others."""

from __future__ import annotations

from contextlab.benchmarks.data.data_set import RAW, DataSet, each

QMSUM = f"{RAW}/Yale-LILY/QMSum/83d7768c1f2b4dfeb091385d3dc7e239b8e5bb7e"
SQUALITY = f"{RAW}/nyu-mll/SQuALITY/dc08d4f574639d773bc64ef3ab3527043108fb4e"
LEVAL = f"{RAW}/OpenLMLab/LEval/cd34b050269148aed75acbbe4a599873ad0f37e9"
LOST_IN_THE_MIDDLE = f"{RAW}/nelson-liu/lost-in-the-middle/29b8a6d042ce29abccee3db1a73171a107d7e6af"
BANKING77 = f"{RAW}/PolyAI-LDN/task-specific-datasets/57ec275d8078af65b7731c2a98be812d844a6d6b/banking_data"
CLINC150 = f"{RAW}/clinc/oos-eval/828f8093932c8fe6ca7936c3d2e52903b1c523de/data"
SQUALITY_FILES = tuple(f"data/v1-3/txt/{part}.jsonl" for part in ("train", "dev", "test"))
LEVAL_FILES = (
    *(f"LEval-data/Closed-ended-tasks/{name}.jsonl" for name in ("quality", "topic_retrieval_longchat")),
    *(f"LEval-data/Open-ended-tasks/{name}.jsonl" for name in ("scientific_qa", "natural_question", "multidoc_qa")),
)
LONGEVAL_FILES = (
    *(f"lines/testcases/{count}_lines.jsonl" for count in (200, 300, 400, 500, 600)),
    "topics/conversations.jsonl",
)
LOST_IN_THE_MIDDLE_FILES = (
    *(f"kv_retrieval_data/kv-retrieval-{keys}_keys.jsonl.gz" for keys in (75, 140, 300)),
    "qa_data/nq-open-oracle.jsonl.gz",
)

ENTRIES = (
    DataSet(
        "banking77",
        "BANKING77 (Casanueva et al. 2020): questions to a bank, 77 intents",
        "https://github.com/PolyAI-LDN/task-specific-datasets",
        "CC BY 4.0",
        "10,003 + 3,080 texts",
        ("train.csv", "test.csv"),
        ("many-label",),
        each(BANKING77, ("train.csv", "test.csv")),
    ),
    DataSet(
        "clinc150",
        "CLINC150 (Larson et al. 2019): requests with 150 intents, and others outside of them",
        "https://github.com/clinc/oos-eval",
        "CC BY 3.0",
        "22,500 texts, and 1,200 out of scope",
        ("data_full.json",),
        remotes=each(CLINC150, ("data_full.json",)),
    ),
    DataSet(
        "nlu_evaluation",
        "NLU Evaluation Data (Liu et al. 2019): requests to an assistant, 64 intents",
        "https://github.com/xliuhw/NLU-Evaluation-Data",
        "CC BY 4.0",
        "11,016 texts in the test sets of its cross-validation",
        ("utterances.csv",),
        otherwise="the test sets of KFold_1 to KFold_10 as one csv with columns fold, answerid, intent, text",
    ),
    DataSet(
        "qmsum",
        "QMSum (Zhong et al. 2021): meetings with queries and their summaries",
        "https://github.com/Yale-LILY/QMSum",
        "MIT",
        "35 + 35 meetings for validation and testing",
        ("data/ALL/jsonl/val.jsonl", "data/ALL/jsonl/test.jsonl"),
        ("qmsum",),
        each(QMSUM, ("data/ALL/jsonl/val.jsonl", "data/ALL/jsonl/test.jsonl")),
    ),
    DataSet(
        "squality",
        "SQuALITY v1.3 (Wang et al. 2022): stories with five questions and four summaries each",
        "https://github.com/nyu-mll/SQuALITY",
        "stories Project Gutenberg's licence; summaries CC BY 4.0",
        "50 + 25 + 52 stories",
        SQUALITY_FILES,
        ("squality",),
        each(SQUALITY, SQUALITY_FILES),
    ),
    DataSet(
        "leval",
        "L-Eval (An et al. 2023): five of its 20 sets",
        "https://github.com/OpenLMLab/LEval",
        "collection GPL-3.0; of every set its own: CC BY 4.0, CC BY-SA 3.0, Apache-2.0",
        "132 documents, 803 questions",
        LEVAL_FILES,
        ("leval", "quality"),
        each(LEVAL, LEVAL_FILES),
    ),
    DataSet(
        "longeval",
        "LongEval (Li et al. 2023): retrieval of lines, and dialogues on topics",
        "https://github.com/DachengLi1/LongChat",
        "Apache-2.0",
        "50 cases a length; 30 dialogues",
        LONGEVAL_FILES,
        ("longeval",),
        otherwise="put longeval/evaluation/ of the repository below longeval/, dialogues as topics/conversations.jsonl",
    ),
    DataSet(
        "lost_in_the_middle",
        "Lost in the middle (Liu et al. 2024): key-value retrieval, and questions with passages that answer them",
        "https://github.com/nelson-liu/lost-in-the-middle",
        "MIT; questions and passages CC BY-SA 3.0",
        "500 records of 75, 140 and 300 pairs; 2,655 questions",
        ("kv_retrieval_data/kv-retrieval-*_keys.jsonl", "qa_data/nq-open-oracle.jsonl"),
        ("key-value", "multidoc"),
        each(LOST_IN_THE_MIDDLE, LOST_IN_THE_MIDDLE_FILES),
    ),
)
