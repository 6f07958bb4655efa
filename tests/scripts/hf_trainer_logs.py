"""Writes tests/data/logs/hf_trainer.*: what the Hugging Face Trainer logs of one small run, in each of its ways.

Recorded with transformers 5.24.0 on a CPU. The run logs its first step and then every third of twelve, and evaluates in between.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data/logs"


def train(how, output):
    import torch
    from torch import nn
    from transformers import Trainer, TrainingArguments, set_seed

    class Bigrams(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(16, 8)
            self.output = nn.Linear(8, 16)

        def forward(self, input_ids, labels=None):
            logits = self.output(self.embedding(input_ids))
            return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    set_seed(1)
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 16, (4,), generator=generator) for _ in range(48)]
    rows = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        output_dir=output, max_steps=12, per_device_train_batch_size=4, logging_steps=3, logging_first_step=True,
        learning_rate=0.05, report_to=[], use_cpu=True, save_steps=12, eval_strategy="steps", eval_steps=6,
        disable_tqdm=how == "plain", include_num_input_tokens_seen="all" if how == "tokens" else "no",
    )
    Trainer(model=Bigrams(), args=arguments, train_dataset=rows, eval_dataset=rows[:8]).train()


if len(sys.argv) > 1:
    train(*sys.argv[1:])
else:
    for how in ["bar", "plain", "tokens"]:
        with tempfile.TemporaryDirectory() as output, open(FOLDER / f"hf_trainer.{how}.log", "wb") as log:
            command = [sys.executable, "-u", __file__, how, output]
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
            if how == "bar":
                state = Path(output) / "checkpoint-12/trainer_state.json"
                shutil.copy(state, FOLDER / "hf_trainer.state.json")
