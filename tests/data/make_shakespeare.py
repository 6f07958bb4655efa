"""Makes tests/data/shakespeare, the tokenized corpus that the README's commands run on.

Tiny Shakespeare (public domain; 7222 speeches under tests/golden/text) goes through the steps of
flash-linear-attention's preprocessing: shuffle the speeches with seed 42, tokenize 2048 of them at a time, join
their tokens and cut them into rows of 128, drop each batch's rest. Ids are below 4096, so they are stored as uint16.

    pip install datasets==5.2.0 transformers==5.24.0 tokenizers==0.23.3 numpy==2.4.6
    python tests/data/make_shakespeare.py
"""
import pathlib
import shutil
import tempfile

import datasets
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
TEXT = HERE.parent / "golden" / "text"
SEQ_LENGTH, SEED, SPEECHES_A_BATCH, SHARDS = 128, 42, 2048, 2


def main():
    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(str(TEXT))

    def cut(batch):
        tokens = [token for ids in tokenizer(batch["text"])["input_ids"] for token in ids]
        ends = range(SEQ_LENGTH, len(tokens) + 1, SEQ_LENGTH)
        return {"input_ids": [tokens[end - SEQ_LENGTH : end] for end in ends]}

    with tempfile.TemporaryDirectory() as cache:
        speeches = datasets.load_dataset(
            "parquet", data_files=str(TEXT / "speeches.parquet"), split="train", cache_dir=cache
        )
        rows = speeches.shuffle(seed=SEED).map(
            cut,
            batched=True,
            batch_size=SPEECHES_A_BATCH,
            remove_columns=speeches.column_names,
            features=datasets.Features({"input_ids": datasets.List(datasets.Value("uint16"))}),
        )
        target = HERE / "shakespeare"
        shutil.rmtree(target, ignore_errors=True)
        rows.save_to_disk(str(target), num_shards=SHARDS)
    print(f"{target}: {rows.num_rows} rows of {SEQ_LENGTH} tokens")


if __name__ == "__main__":
    main()
