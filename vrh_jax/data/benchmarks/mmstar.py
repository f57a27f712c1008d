"""MMStar (Lin-Chen/MMStar): 1,500 choice questions, 250 in each of six categories."""

import re

from vrh_jax.data.benchmarks.questions import (
    Question,
    QuestionOptions,
    option_of,
    questions,
)
from vrh_jax.data.benchmarks.records import Record, pick, read_records
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.source import Rows

COLUMNS = ("index", "question", "answer", "category", "l2_category")
LETTERS = "ABCDEFGH"
_OPTIONS = re.compile(r"\s*\bOptions?\s*:\s*(?=A\s*[:.])", re.IGNORECASE)


class MmstarOptions(QuestionOptions):
    """Options of the task ``mmstar``."""


def load(options: MmstarOptions, _split: Split, _count: int) -> Rows[Question]:
    """The questions of mmstar.parquet, of MMStar.tsv or of JSON with image files."""
    path = pick(options.path, ("mmstar.parquet", "val*.parquet", "*.parquet", "*.tsv", "*.json*"))
    records = read_records(path, columns=COLUMNS, images=options.images)
    return questions([_question(record) for record in records])


TASK = Task(options=MmstarOptions, load=load, generated=False)


def _question(record: Record) -> Question:
    row = record.row
    stem, choices = split_options(record.text("question"))
    columns = tuple(str(row[c]) for c in LETTERS if row.get(c) not in (None, ""))
    choices = columns or choices  # the table of VLMEvalKit has them in columns
    answer = record.text("answer").strip()
    return Question(
        id=record.text("index"),
        kind="choice",
        text=stem,
        answer=option_of(answer, choices, record.source) if choices else answer,
        image=record.picture(),
        image_id=f"mmstar-{row['index']}",
        source=record.source,
        rule="mmstar",
        category=f"{row['category']}/{row['l2_category']}",
        choices=choices,
        row=row,
    )


def split_options(question: str) -> tuple[str, tuple[str, ...]]:
    """The question and its options from "... Options: A: x, B: y".

    Where the letters do not follow each other, the whole text stays the question, without
    options.
    """
    start = None
    for start in _OPTIONS.finditer(question):  # noqa: B007 - the last one counts
        pass
    if start is None:
        return question, ()
    rest, found = question[start.end() :], []
    place = 0
    for letter in LETTERS:
        opening = re.compile(rf"(?:^|[,;\n]\s*|\s{{2,}}|\.\s+){letter}\s*[:.]\s*").search(
            rest, place
        )
        if opening is None:
            break
        found.append((opening.start(), opening.end()))
        place = opening.end()
    if len(found) < 2:
        return question, ()
    ends = [begin for begin, _ in found[1:]] + [len(rest)]
    choices = [rest[begin:end].strip() for (_, begin), end in zip(found, ends, strict=True)]
    choices[-1] = choices[-1].rstrip().removesuffix(",").strip()
    return question[: start.start()].rstrip(), tuple(choices)
