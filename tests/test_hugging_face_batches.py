"""Padded batches of mixed lengths in decoders of many families: the numbers of one sequence at a time."""

import copy
import pickle

import pytest
import torch

from abcnb.lines.calibration import calibrate_attention, candidates
from abcnb.lines.line import Line, LineBias
from abcnb.tasks.tokens import IDS, encode
from abcnb.yours.hugging_face import attach, attach_saved, average_attention, calibrate
from abcnb.yours.pytorch import PromptApart, TokenRule, batch_mask, dense_mask, stream_of_prompt
from tests.decoders import FAMILIES, HEADS, LINES, RULE, WRITE, logits, model_of, transformers

TEXTS = ("$1+2=3&", "$12+34=640&", "$123+7=031&", "$12+34=46&", "$9+45=45&")
PROMPTS = tuple(text[: text.index("=") + 1] for text in TEXTS)


def padded(texts, side="right"):
    ids = [encode(text) for text in texts]
    longest = max(map(len, ids))
    rows, mask = torch.full((len(ids), longest), IDS["@"]), torch.zeros(len(ids), longest, dtype=torch.long)
    for number, own in enumerate(ids):
        here = slice(0, len(own)) if side == "right" else slice(longest - len(own), longest)
        rows[number, here], mask[number, here] = own, 1
    return rows, mask


FOR_ALL, PER_LAYER = (LINES, False), ((PromptApart(HEADS), LINES), True)
PADDED = [(family, *how) for family in FAMILIES for how in ((*FOR_ALL, "right"), (*PER_LAYER, "left"))]
PADDED += [("Llama", *FOR_ALL, "left"), ("GPT2", *FOR_ALL, "left"), ("Llama", *PER_LAYER, "right")]


@pytest.mark.parametrize("family, biases, keep, side", PADDED)
def test_a_padded_batch_has_the_numbers_of_one_sequence_at_a_time(family, biases, keep, side):
    model = model_of(family)
    attach(model, biases, RULE, keep_positions=keep)
    ids, mask = padded(TEXTS, side)
    together = logits(model, ids, attention_mask=mask)
    for number, text in enumerate(TEXTS):
        own = together[number][mask[number] == 1]
        torch.testing.assert_close(own, logits(model, text)[0], atol=1e-5, rtol=1e-4)


def writes_what_each_would_write_alone(model, **write):
    write = WRITE | {"max_new_tokens": 5} | write
    ids, mask = padded(PROMPTS, "left")
    together = model.generate(ids, attention_mask=mask, **write)[:, ids.shape[1] :]
    for number, prompt in enumerate(PROMPTS):
        alone = model.generate(encode(prompt)[None], **write)[0, len(prompt) :]
        assert torch.equal(together[number], alone), prompt


def sees_the_same_at_any_distance(model):
    near, far = (logits(model, text)[0, -1] for text in ("$7+5=", "$00007+5="))
    torch.testing.assert_close(near, far, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_from_prompts_of_several_lengths_writes_what_each_would_write_alone(family, keep):
    model = model_of(family)
    attach(model, LINES, RULE, keep_positions=keep)
    writes_what_each_would_write_alone(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_are_switched_off(family):
    model = model_of(family)
    attach(model, LINES, RULE)
    sees_the_same_at_any_distance(model)


@pytest.mark.parametrize("family", ["Bloom", "Falcon", "Mpt"])
def test_alibi_is_left_alone_where_it_decides_nothing_and_refused_where_it_needs_the_padding_mask(family):
    model = model_of(family, **{"alibi": True} if family == "Falcon" else {})
    if family != "Falcon":
        with pytest.raises(ValueError, match="so its positions cannot be switched off: pass keep_positions=True"):
            attach(model, LINES, RULE)
    if family != "Mpt" or transformers.__version__ < "4.57":  # before, its masks were the same for all heads
        with pytest.raises(ValueError, match=rf"takes a mask of .*, {family}ForCausalLM does not"):
            attach(model, LINES, RULE, keep_positions=True)
        return
    attach(model, LINES, RULE, keep_positions=True)
    sees_the_same_at_any_distance(model)
    ids, mask = padded(TEXTS, "left")
    with pytest.raises(
        ValueError, match="padded on the right, since MptForCausalLM counts positions with the padding"
    ):
        model(input_ids=ids, attention_mask=mask)


def test_a_replica_of_data_parallel_is_refused():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    model._is_replica = True  # as torch.nn.DataParallel marks its copies
    with pytest.raises(ValueError, match="expected one model a process"):
        model(input_ids=encode(TEXTS[0])[None])


def test_beams_keep_the_lines_of_their_prompts():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    writes_what_each_would_write_alone(model, num_beams=3)


@pytest.mark.parametrize(
    "move, how, rows",
    [
        ("reorder_cache", torch.tensor([2, 0, 1]), [2, 0, 1]),
        ("batch_select_indices", torch.tensor([2, 0]), [2, 0]),
        ("batch_repeat_interleave", 2, [0, 0, 1, 1, 2, 2]),
    ],
)
def test_a_cache_whose_rows_were_moved_goes_on_along_the_lines_of_their_prompts(move, how, rows):
    model = model_of("Llama")
    attach(model, LINES, RULE)
    prompts = torch.stack([encode(text) for text in ("$12+3=", "$1+23=", "$12+3=")])
    with torch.no_grad():
        cache = model(input_ids=prompts, use_cache=True).past_key_values
        all_of_it = cache, copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))
        for moved in all_of_it:
            getattr(moved, move)(how)
        token = torch.full((len(rows), 1), IDS["5"])
        right = logits(model, torch.cat([prompts[rows], token], 1))[:, -1]
        for moved in all_of_it:
            found = model(input_ids=token, past_key_values=moved).logits[:, -1]
            torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-4)


def test_lines_do_not_count_from_where_an_output_ends_which_generation_does_not_know():
    model = model_of("Llama")
    from_the_end = LineBias("self", HEADS, (Line(0, "digits", "digits", ("first-place",), (1,)),))
    attach(model, from_the_end, RULE)
    with pytest.raises(ValueError, match="expected lines that count from where 'digits' begins"):
        logits(model, "$12+3=51&")
    stream = stream_of_prompt(RULE.sequences(encode("$12+3=")[None])[0].prompt, 9)
    written = [line for line in candidates([stream], "digits", False) if line.segment == "digits"]
    assert written and {line.follows for line in written} <= {("place",), ("2place",), ("none",)}


def test_rows_that_hold_more_than_a_sequence_are_refused():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    packed = encode("$12+3=51&$1+23=42&")[None]
    given = {"attention_mask": torch.ones_like(packed), "position_ids": torch.tensor([[*range(9), *range(9)]])}
    for more in (given, {"attention_mask": torch.tensor([[1] * 9 + [2] * 9])}):
        with pytest.raises(ValueError, match="expected one sequence in each row"):
            logits(model, packed, **more)
    with pytest.raises(ValueError, match="expected one sequence in each row"):
        logits(model, packed.expand(2, -1), position_ids=given["position_ids"])
    model.config.pad_token_id = IDS["@"]
    ids, mask = padded(PROMPTS, "left")
    with pytest.raises(ValueError, match="expected an attention mask of sequences that are padded on the left"):
        logits(model, ids)
    logits(model, ids, attention_mask=mask)


def test_generation_cannot_go_on_from_prompts_padded_on_the_right():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    ids, mask = padded(PROMPTS, "right")
    with pytest.raises(ValueError, match="expected a cache of whole prompts, padded on the left"):
        model.generate(ids, attention_mask=mask, max_new_tokens=3, pad_token_id=IDS["@"])


def test_the_gradient_of_a_padded_batch_is_that_of_its_sequences():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    ids, mask = padded(TEXTS)
    labels = ids.masked_fill(mask == 0, -100)
    model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
    together, count = model.lm_head.weight.grad.clone(), int((labels[:, 1:] != -100).sum())
    model.zero_grad()
    for text in TEXTS:
        own = encode(text)[None]
        (model(input_ids=own, labels=own).loss * (own.shape[1] - 1) / count).backward()
    torch.testing.assert_close(model.lm_head.weight.grad, together, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_mask_is_the_masks_of_its_sequences_and_rows_of_padding_see_its_first_token(side):
    ids, mask = padded(TEXTS, side)
    sequences = RULE.sequences(ids, mask)
    found = batch_mask(LINES, sequences, ids.shape[1])
    assert found.shape == (len(TEXTS), HEADS, ids.shape[1], ids.shape[1])
    for number, laid in enumerate(sequences):
        own = slice(laid.start, laid.end)
        alone = dense_mask(LINES, stream_of_prompt(laid.prompt, laid.end - laid.start).columns())
        assert torch.equal(found[number][:, own, own], alone)
        seen = found[number] == 0
        padding = mask[number] == 0
        assert seen[:, padding, laid.start].all() and (seen[:, padding].sum(-1) == 1).all()
        assert not seen[:, own][..., padding].any()
    alike = [RULE.sequences(ids)[1]] * 3
    assert batch_mask(LINES, alike, ids.shape[1]).shape[0] == 1, "sequences of one shape share one mask"


@pytest.mark.parametrize(("family", "apart"), [("Llama", True), ("Llama", False), ("GPT2", False)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_attention_of_a_padded_batch_is_averaged_by_shape_and_positions_are_those_of_its_sequences(
    family, apart, side
):
    model = model_of(family)
    if apart:
        attach(model, PromptApart(HEADS), RULE)  # without positions of its own
    ids, mask = padded(TEXTS, side)
    found = average_attention(model, [{"input_ids": ids, "attention_mask": mask, "labels": ids}], RULE)
    alone = average_attention(model, [encode(text)[None] for text in TEXTS], RULE)
    assert [one.stream.shape for one in found] == [one.stream.shape for one in alone] == [
        (1, 1), (2, 2), (3, 1), (2, 2), (1, 2)
    ]  # fmt: skip
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one.self_attention, other.self_attention, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "batch", [[encode("$1+2=3&")[None]], {"ids": encode("$1+2=3&")[None]}, encode("$1+2=")[None]]
)
def test_batches_without_ids_or_outputs_are_not_averaged(batch):
    with pytest.raises(ValueError, match=r"expected (batches of token ids|sequences with their outputs)"):
        average_attention(model_of("Llama"), [batch], RULE)


def test_calibration_is_one_call():
    model = model_of("Llama")
    ids, mask = padded(TEXTS[:4])
    batches = [{"input_ids": ids, "attention_mask": mask}]
    lines = calibrate(model, batches, RULE, tau=0.05)
    assert lines.table.equals(calibrate_attention(average_attention(model, batches, RULE), 0.05).table)
    above = 0.99 * float(lines.table["share"].max())
    assert len(lines.found) > len(calibrate(model, batches, RULE, tau=above).found) > 0


class Tokenizer:
    unk_token_id = 3

    def convert_tokens_to_ids(self, token):
        return IDS.get(token, self.unk_token_id) if token != "9" else None


def test_a_rule_is_made_from_a_tokenizer():
    rule = TokenRule.of_tokenizer(Tokenizer(), digits="01245678")
    assert rule == TokenRule([IDS[d] for d in "01245678"], IDS["="])
    with pytest.raises(ValueError, match=r"expected a token for each of 89 and '=', got none for .'9'."):
        TokenRule.of_tokenizer(Tokenizer(), digits="89")
    merging = Tokenizer()
    merging.unk_token_id, merging.convert_tokens_to_ids = None, (IDS | {"42": 99}).get
    with pytest.raises(ValueError, match="writes digit by digit, got one with the token '42'"):
        TokenRule.of_tokenizer(merging)


@pytest.mark.parametrize("biases", [LINES, (PromptApart(HEADS), LINES)], ids=["for all", "per layer"])
def test_lines_are_saved_with_the_weights_and_attached_again_in_one_call(tmp_path, biases):
    model = model_of("Llama")
    attach(model, biases, RULE, keep_positions=True)
    ids, mask = padded(TEXTS)
    expected = logits(model, ids, attention_mask=mask)
    model.save_pretrained(tmp_path)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    lines = attach_saved(again, tmp_path)
    assert lines.biases == (biases if isinstance(biases, tuple) else (biases,)) and lines.keep_positions
    torch.testing.assert_close(logits(again, ids, attention_mask=mask), expected)
    lines.detach()
    assert set(again.state_dict()) == set(model_of("Llama").state_dict()), "and taken away without a trace"


def test_weights_without_lines_are_refused(tmp_path):
    model_of("Llama").save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=r"expected weights that were saved with lines, .* in .*plain, got none"):
        attach_saved(model_of("Llama"), tmp_path / "plain")


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_lines_of_each_layers_own_are_those_of_the_pass_that_is_recomputed():
    """Under gradient checkpointing a layer runs again in the backward pass, when the model has seen other inputs."""
    found = []
    for checkpointing in (False, True):
        model = model_of("Llama").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        attach(model, (LINES, PromptApart(HEADS)), RULE)
        one, other = (encode(text)[None] for text in ("$12+34=64&", "$1+234=532&"))
        loss = model(input_ids=one, labels=one).loss + model(input_ids=other, labels=other).loss
        model(input_ids=other)
        loss.backward()
        found.append(gradients(model))
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-4)


def test_a_wrapper_whose_generate_goes_past_the_lines_is_refused():
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(
        model_of("Llama"), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    )
    with pytest.raises(ValueError, match=r"expected the model inside of Peft.*: attach to get_base_model\(\)"):
        attach(wrapped, LINES, RULE, keep_positions=True)
    attach(wrapped.get_base_model(), LINES, RULE)
    ids = encode(PROMPTS[0])[None]
    inner = model_of("Llama")
    attach(inner, LINES, RULE)
    write = WRITE | {"max_new_tokens": 4}
    assert torch.equal(wrapped.generate(input_ids=ids, **write), inner.generate(ids, **write))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_goes_past_the_lines_is_refused(family):
    """As LoRA of peft before 0.21 calls the model that it wraps."""
    model, ids = model_of(family), encode(PROMPTS[0])[None]
    lines = attach(model, LINES, RULE, keep_positions=family == "OPT")
    body = (
        model.model if model.base_model is model else model.base_model
    )  # the former: Gemma 3 of transformers 4.56
    for past_them in (model.forward, body):
        for more in ({}, {"attention_mask": torch.ones_like(ids)}):
            with pytest.raises(ValueError, match=r"got one of its forward\(\) or its body alone"):
                past_them(input_ids=ids, **more)
    lines.detach()
    model.forward(input_ids=ids)


def test_packed_rows_are_refused_in_training():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    ids = encode(TEXTS[0] + TEXTS[1])[None]
    with pytest.raises(ValueError, match="got several packed into number 0 of the batch"):
        model(input_ids=ids, labels=ids)
    with pytest.raises(ValueError, match="got several packed into number 0 of the batch"):
        average_attention(model, [ids], RULE)


def test_prompts_with_other_numbers_of_operands_are_not_calibrated_together():
    with pytest.raises(ValueError, match="expected shapes with the same segments"):
        calibrate(model_of("Llama"), [encode("$12=21&")[None], encode(TEXTS[1])[None]], RULE, tau=0.05)


def test_modules_stay_in_the_mode_that_they_had():
    model = model_of("Llama").train()
    model.model.layers[0].eval()
    average_attention(model, [encode(TEXTS[0])[None]], RULE)
    attach(model, LINES, RULE)
    assert model.training and not model.model.layers[0].training and model.model.layers[1].training
