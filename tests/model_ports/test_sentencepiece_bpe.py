"""InternLM2's tokenizer built from its files against the sentencepiece library."""

import itertools
import json
import random

import pytest
from support.internlm2_tokenizer import CORPUS, slow_ids, slow_model, write_internlm2_tokenizer

from model_ports.errors import UserError
from model_ports.sentencepiece_bpe import is_internlm2, load_internlm2, parse_model
from model_ports.text import load_tokenizer, read_eos_ids

# Settings of the model file that decide about ids.
VARIANTS = [
    {},
    {"add_dummy_prefix": True},
    {"remove_extra_whitespaces": True, "allow_whitespace_only_pieces": False},
    {"add_dummy_prefix": True, "remove_extra_whitespaces": True},
    {"byte_fallback": False},
    {"user_defined_symbols": []},
    {"user_defined_symbols": ["[UNUSED_TOKEN_0]", "[UNUSED_TOKEN_1]", "JSON", "12"]},
]


def texts(seed):
    """Sentences cut and joined at random, with spaces, new lines, bytes and added tokens."""
    rng = random.Random(seed)
    extra = ["<img>", "<|im_end|>\n", "  ", "\n\n", " ", "é", "\U0001f409", "JSON",
             "[[1, 22, 333]]", "</ref>", "\t", "1000", " " * 7, "a" * 11, "0" * 9]  # fmt: skip
    for _ in range(40):
        parts = []
        for _ in range(rng.randint(1, 6)):
            line = rng.choice(CORPUS)
            a, b = sorted(rng.randrange(len(line)) for _ in range(2))
            parts.append(line[a:b] if rng.random() < 0.6 else rng.choice(extra))
        yield "".join(parts)


@pytest.mark.parametrize("training", VARIANTS)
def test_ids_of_the_library(tmp_path, training):
    ids = write_internlm2_tokenizer(tmp_path, **training)
    tokenizer = load_internlm2(tmp_path)
    for text in texts(seed=len(str(training))):
        if training.get("remove_extra_whitespaces") and not text.strip(" "):
            continue
        ours = tokenizer(text)["input_ids"]
        assert ours == slow_ids(tmp_path, ids, text), text
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ours[1:]


def test_text_comes_back(tmp_path):
    write_internlm2_tokenizer(tmp_path)
    tokenizer = load_internlm2(tmp_path)
    for text in texts(seed=1):
        kept = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(kept, clean_up_tokenization_spaces=False) == text
    assert tokenizer.decode([1, *kept], skip_special_tokens=False).startswith("<s>")


def test_names_and_roles(tmp_path):
    ids = write_internlm2_tokenizer(tmp_path)
    pieces = slow_model(tmp_path).get_piece_size()
    tokenizer = load_tokenizer(tmp_path, pieces + 9)
    assert is_internlm2(tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<s>",
        "</s>",
        "</s>",
    )
    assert tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>") == ids["<IMG_CONTEXT>"] == pieces + 2
    assert "[UNUSED_TOKEN_0]" not in tokenizer.get_vocab()
    assert tokenizer.get_vocab()["<|im_end|>"] == ids["<|im_end|>"] < pieces
    assert read_eos_ids(tmp_path, tokenizer) == (2,)
    assert tokenizer.chat_template.startswith("{{ bos_token }}")
    with pytest.raises(UserError, match="different checkpoints"):
        load_tokenizer(tmp_path, pieces)
    # A tokenizer.json beside the foreign class is read as it is.
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.model").unlink()
    again = load_tokenizer(tmp_path, pieces + 9)
    assert again("<ref>a red box</ref>")["input_ids"] == tokenizer("<ref>a red box</ref>").input_ids


def test_offsets_cover_the_text(tmp_path):
    """What ``token_slots`` needs: which characters a token covers."""
    write_internlm2_tokenizer(tmp_path)
    tokenizer = load_internlm2(tmp_path)
    text = "<|im_start|>user\nwhere is the red square? \u4f60<|im_end|>"
    spans = tokenizer(text, return_offsets_mapping=True)["offset_mapping"][1:]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(a[1] >= b[0] for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("training", "named"),
    [
        ({"model_type": "unigram", "vocab_size": 330}, "BPE"),
        ({"normalization_rule_name": "nmt_nfkc"}, "character map"),
        ({"treat_whitespace_as_suffix": True}, "suffix"),
    ],
)
def test_models_that_give_other_ids_are_refused(tmp_path, training, named):
    write_internlm2_tokenizer(tmp_path, **training)
    with pytest.raises(UserError, match=named):
        load_tokenizer(tmp_path, 10**6)


def test_damaged_and_missing_files_are_named(tmp_path):
    write_internlm2_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.model"
    data = path.read_bytes()
    for broken in (data[:1000], b"version https://git-lfs", b"", b"\xff" * 40):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"tokenizer\.model"):
            parse_model(path)
    path.unlink()
    with pytest.raises(UserError, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path, 10**6)


def test_added_token_of_another_vocabulary_is_refused(tmp_path):
    write_internlm2_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    added = settings["added_tokens_decoder"]
    last = max(added, key=int)
    added[str(int(last) + 5)] = added.pop(last)
    path.write_text(json.dumps(settings))
    with pytest.raises(UserError, match="</box>"):
        load_internlm2(tmp_path)
