"""Lines in one decoder at a time: what it sees, what it writes, and what is refused."""

import weakref

import pytest
import torch

from abcnb.lines.biases import Biases
from abcnb.lines.calibration import calibrate_attention
from abcnb.lines.line import Line, LineBias, windows
from abcnb.tasks.task import get_task
from abcnb.tasks.tokens import IDS, encode
from abcnb.yours.hugging_face import attach, average_attention
from abcnb.yours.pytorch import PromptApart, TokenRule, dense_mask
from tests.decoders import GROUPED, HEADS, LINES, RULE, SIZES, WRITE, logits, model_of, transformers

OTHER = LineBias("self", HEADS, LINES.lines[:2])
IDS_OF = torch.stack([encode(text) for text in ("$12+34=64", "$99+07=60")])
WHOLE = torch.cat([IDS_OF, torch.full((2, 1), IDS["&"])], 1)  # of training: no step reads the last token
THREE = ["Llama", "GPT2", "Qwen2"]


@pytest.mark.parametrize("family", THREE)
@pytest.mark.parametrize("biases", [LINES, (LINES, OTHER)], ids=["4-D mask", "per layer"])
def test_a_token_matters_where_a_line_leads_to_it_and_nowhere_else(family, biases):
    model = model_of(family)
    plain = logits(model, IDS_OF)
    lines = attach(model, biases, RULE)
    before = logits(model, IDS_OF)
    layers = biases if isinstance(biases, tuple) else (biases, biases)
    reach = torch.eye(9, dtype=torch.bool)
    for bias in layers:
        seen = (dense_mask(bias, RULE.stream(IDS_OF).columns()) == 0).any(0)
        reach = (seen.float() @ reach.float() + reach.float()) > 0
    for token in range(9):
        if IDS_OF[0, token] == RULE.prompt_end:
            continue
        changed = IDS_OF.clone()
        changed[:, token] = torch.where(changed[:, token] == IDS["0"], IDS["1"], IDS["0"])
        if token in (0, 3):  # structure must stay structure
            changed[:, token] = IDS["*"]
        moved = (logits(model, changed) - before).abs().amax(-1) > 1e-6
        assert torch.equal(moved[0], reach[:, token]), token
    lines.detach()
    assert torch.equal(logits(model, IDS_OF), plain)


@pytest.mark.parametrize("family", THREE[:2])
def test_the_same_lines_in_every_layer_are_the_same_as_one_mask_for_all(family):
    model = model_of(family)
    one = attach(model, LINES, RULE)
    expected = logits(model, IDS_OF)
    one.detach()
    model.set_attn_implementation("eager")
    one = attach(model, LINES, RULE)
    torch.testing.assert_close(logits(model, IDS_OF), expected, atol=1e-5, rtol=1e-4)
    one.detach()
    attach(model, (LINES, LINES), RULE)
    torch.testing.assert_close(logits(model, IDS_OF), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keep", [False, True])
def test_positions_mean_nothing_unless_they_are_kept(keep):
    model = model_of("Llama")
    start = LineBias("self", HEADS, (Line(0, "digits", "token 0"), Line(0, "digits", "digits", ("place",), (-1,))))
    attach(model, start, RULE, keep_positions=keep)
    short, long = (logits(model, text)[:, -1] for text in ("$7=", "$0000007="))
    assert torch.allclose(short, long, atol=1e-5) is not keep


@pytest.mark.parametrize("family", [*THREE, "Mistral"])  # the last has a window of its own
@pytest.mark.parametrize("biases", [LINES, (LINES, OTHER)], ids=["4-D mask", "per layer"])
def test_generation_with_the_cache_writes_what_whole_passes_write(family, biases):
    model = model_of(family)
    attach(model, biases, RULE)
    ids = IDS_OF[:, :7]
    written = model.generate(ids, max_new_tokens=6, **WRITE)
    whole = ids
    for _ in range(6):
        whole = torch.cat([whole, logits(model, whole)[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, whole)


def test_a_model_with_lines_is_trained_and_calibrated_attention_is_its_own():
    model = model_of("Llama")
    eager = model_of("Llama", attn_implementation="eager")
    (found,) = average_attention(model, [WHOLE, WHOLE.flip(0)], RULE)
    with torch.no_grad():
        expected = eager(input_ids=IDS_OF, output_attentions=True).attentions
    torch.testing.assert_close(found.self_attention, torch.stack([layer.mean(0) for layer in expected]))
    assert model.config._attn_implementation == "sdpa" and found.stream.shape == (2, 2)
    (bias,) = calibrate_attention([found], 0.05).biases(4).self_biases
    attach(model, bias, RULE)
    model.train()
    model(input_ids=IDS_OF, labels=IDS_OF, attention_mask=torch.ones_like(IDS_OF)).loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad.isfinite().all()
    (again,) = average_attention(model, [WHOLE], RULE)  # of the model with its lines, for a second calibration
    assert torch.equal(again.self_attention[0].sum(0) > 0, (dense_mask(bias, found.stream.columns()) == 0).any(0))


def test_prompts_that_differ_in_where_digits_stand_are_averaged_apart():
    shifted = IDS_OF[:, [1, 0, *range(2, IDS_OF.shape[1])]]
    found = average_attention(model_of("Llama"), [IDS_OF, shifted], RULE)
    assert len(found) == 2, "`$` is the first token of one, and the second of the other"


def test_of_a_plain_model_only_the_prompt_is_apart():
    model = model_of("Llama")
    attach(model, PromptApart(4), RULE, keep_positions=True)
    (found,) = average_attention(model, [WHOLE], RULE)
    seen = found.self_attention[0, 0] > 0
    assert torch.equal(seen[:6], torch.eye(9, dtype=torch.bool)[:6])
    assert torch.equal(seen[6:], torch.ones(9, 9, dtype=torch.bool).tril()[6:])


class IgnoresMasks(transformers.LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **more):
        return super().forward(input_ids=input_ids, position_ids=None, **more)


def test_what_would_ignore_the_lines_is_refused():
    config = model_of("Llama").config
    model = IgnoresMasks(config).eval()
    with pytest.raises(ValueError, match="IgnoresMasks sees tokens that the mask closes"):
        attach(model, LINES, RULE)
    logits(model, IDS_OF)  # and it is left as it was
    with pytest.raises(ValueError, match=r"expected token ids of .batch, tokens., got .9."):
        average_attention(model_of("Llama"), [IDS_OF[0]], RULE)
    for rule in (TokenRule([40, 41], IDS["="]), TokenRule([IDS["0"]], IDS["="])):
        with pytest.raises(ValueError, match="expected two digits or more, and ids below the 40 of the model"):
            attach(model_of("Llama"), LINES, rule)
    with pytest.raises(ValueError, match=r"expected lines of self-attention, .*got lines of cross-attention"):
        attach(model_of("Llama"), LineBias("cross", 4, ()), RULE)
    with pytest.raises(ValueError, match="expected a Hugging Face decoder, got Linear"):
        attach(torch.nn.Linear(2, 2), LINES, RULE)
    with pytest.raises(ValueError, match="expected lines for 4 heads, got \\[2\\]"):
        attach(model_of("Llama"), LineBias("self", 2, ()), RULE)
    with pytest.raises(ValueError, match="expected one bias, or one for each of 2 layers, got 3"):
        attach(model_of("Llama"), (LINES, LINES, LINES), RULE)
    model = model_of("Llama")
    attached = attach(model, LINES, RULE)
    with pytest.raises(ValueError, match="got one that has some"):
        attach(model, LINES, RULE)
    for _ in range(2):  # once is enough, twice does no harm
        attached.detach()
    attach(model, LINES, RULE)
    with pytest.raises(
        ValueError, match=r"padded on either side alone, .* got one with padding inside it, number 1"
    ):
        logits(model, IDS_OF, attention_mask=torch.tensor([[1] * 9, [1, 0] + [1] * 7]))
    with pytest.raises(ValueError, match=r"expected an attention mask of .2, 9., as the ids, got .2, 8."):
        logits(model, IDS_OF, attention_mask=torch.ones(2, 8))
    with pytest.raises(ValueError, match=r"expected an attention mask of .batch, tokens., got one of your own"):
        logits(model, IDS_OF, attention_mask=torch.zeros(2, 1, 9, 9))
    with pytest.raises(ValueError, match="expected input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(ValueError, match="whose prompts end with token 24, got one with no such token, number 0"):
        logits(model, "$12")
    packed = transformers.DataCollatorWithFlattening()([{"input_ids": ids.tolist()} for ids in IDS_OF])
    with pytest.raises(ValueError, match="expected one sequence in each row, got several packed into one"):
        model(**packed)
    with pytest.raises(ValueError, match="expected digits in every prompt, got none in number 0"):
        logits(model, "$=12")


def test_what_mixes_neighbours_outside_its_attention_is_refused():
    """Here by a convolution over two tokens."""
    config = transformers.Lfm2Config(
        **SIZES, **GROUPED, layer_types=["conv", "full_attention"], conv_L_cache=2, pad_token_id=0
    )
    with pytest.raises(ValueError, match="Lfm2ForCausalLM sees tokens that the mask closes"):
        attach(transformers.Lfm2ForCausalLM(config).eval(), LINES, RULE)


def test_layers_that_share_a_number_have_no_lines_of_their_own():
    model = model_of("Llama")
    model.model.layers[1] = model.model.layers[0]
    with pytest.raises(
        ValueError, match=r"expected 2 layers, each with a layer_idx of its own, got those of \[0\]"
    ):
        attach(model, (LINES, OTHER), RULE)
    attach(model, LINES, RULE)  # the same in both


def test_what_would_go_past_the_lines_after_they_were_attached_is_refused():
    model = model_of("Llama")
    with torch.inference_mode():
        attach(model, LINES, RULE)
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="expected eager or sdpa attention, got 'flex_attention'"):
        logits(model, IDS_OF)
    routed = model_of("Mixtral", **GROUPED, num_local_experts=2, num_experts_per_tok=1)
    attach(routed, LINES, RULE)
    with pytest.raises(ValueError, match="leave output_router_logits out"):
        logits(routed, WHOLE, labels=WHOLE, output_router_logits=True)


def test_padding_after_a_cache_is_refused():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    with torch.no_grad():
        cache = model(input_ids=IDS_OF, use_cache=True).past_key_values
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, 9] = 0
    with pytest.raises(ValueError, match="expected new tokens without padding after a cache"):
        logits(model, IDS_OF[:, -2:], past_key_values=cache, attention_mask=mask)


def test_weights_of_other_lines_of_the_same_size_are_refused():
    moved = LINES.lines[0]._replace(offset=(1,))
    models = [model_of("Llama"), model_of("Llama")]
    for model, first in zip(models, (LINES.lines[0], moved), strict=True):
        attach(model, LineBias("self", HEADS, (first, *LINES.lines[1:])), RULE)
    models[0].load_state_dict(models[0].state_dict())
    with pytest.raises(ValueError, match="expected weights that were trained with these lines"):
        models[0].load_state_dict(models[1].state_dict())


def test_lines_may_be_attached_to_a_model_that_is_compiled():
    model, compiled = model_of("Llama"), model_of("Llama")
    compiled.compile(backend="eager")
    for one in (model, compiled):
        attach(one, (LINES, OTHER), RULE)
    torch.testing.assert_close(logits(compiled, IDS_OF), logits(model, IDS_OF))


def test_a_cache_may_be_cropped_to_what_was_written():
    """As assisted decoding does, which drops the tokens that it guessed wrong; a prompt must then go on as it was."""
    model, ids = model_of("Llama"), encode("$12+34=64")[None]
    attach(model, LINES, RULE)
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    cache.crop(-1)
    torch.testing.assert_close(logits(model, ids[:, 8:], past_key_values=cache)[:, -1], logits(model, ids)[:, -1])
    cache.crop(-4)
    for other in (ids[:, 6:], encode("4+=64")[None]):
        with pytest.raises(ValueError, match="expected a cache of whole prompts, padded on the left"):
            logits(model, other, past_key_values=cache)
    torch.testing.assert_close(logits(model, ids[:, 5:], past_key_values=cache)[:, -1], logits(model, ids)[:, -1])


def test_assisted_generation_writes_the_same_with_lines_in_the_assistant():
    model, helper = model_of("Llama"), transformers.LlamaForCausalLM(model_of("Llama").config).eval()
    attach(model, LINES, RULE)
    attach(helper, LINES, RULE)
    prompt, asked = encode("$123+7=")[None], WRITE | {"max_new_tokens": 10}
    alone = model.generate(prompt, **asked)
    assert torch.equal(model.generate(prompt, assistant_model=helper, **asked), alone)


def test_a_cache_is_freed_with_its_last_reference():
    model, alive = model_of("Llama"), weakref.WeakSet()
    attach(model, LINES, RULE)
    for _ in range(3):
        said = model(input_ids=IDS_OF, use_cache=True)
        alive.add(said.past_key_values)
        del said
        assert not alive


def test_lines_are_attached_as_calibration_returns_them_and_in_double_precision():
    model = model_of("Llama").double()
    lines = attach(model, Biases((LINES,)), RULE)
    assert lines.biases == (LINES,) and logits(model, IDS_OF).isfinite().all()
    lines.detach()
    with pytest.raises(ValueError, match="got lines of cross-attention"):
        attach(model, windows(get_task("addition").stream(4), HEADS), RULE)


def test_attention_along_lines_of_each_layers_own_is_averaged():
    model = model_of("Llama")
    attach(model, (LINES, OTHER), RULE)
    (found,) = average_attention(model, [WHOLE], RULE)
    for bias, seen in zip((LINES, OTHER), found.self_attention, strict=True):
        assert torch.equal(seen.sum(0) > 0, (dense_mask(bias, found.stream.columns()) == 0).any(0))


def test_a_cache_of_before_is_refused():
    model = model_of("Llama")
    with torch.no_grad():
        cache = model(input_ids=IDS_OF, use_cache=True).past_key_values
    attach(model, LINES, RULE)
    with pytest.raises(ValueError, match="expected a cache that was filled with these lines"):
        logits(model, IDS_OF[:, -1:], past_key_values=cache)


def test_several_caches_in_use_by_turns_keep_their_own_prompts():
    model, prompts = model_of("Llama"), (encode("$12+34=")[None], encode("$1+3=")[None])
    attach(model, LINES, RULE)
    token = torch.tensor([[IDS["5"]]])
    with torch.no_grad():
        caches = [
            model(input_ids=ids, use_cache=True, return_dict=as_dict)[1]
            for ids, as_dict in zip(prompts, (True, False), strict=True)
        ]
        for ids, cache in zip(prompts, caches, strict=True):
            expected = logits(model, torch.cat([ids, token], 1))[:, -1]
            torch.testing.assert_close(logits(model, token, past_key_values=cache)[:, -1], expected)


def test_a_pass_during_another_leaves_the_prompts_of_its_cache_alone():
    """As passes of several threads are."""
    model, ids, during = model_of("Llama"), encode("$12+34=6")[None], []
    attach(model, LINES, RULE)

    def begin_another(*_):
        hook.remove()
        during.append(logits(model, "$1+3="))

    hook = model.model.layers[0].register_forward_hook(begin_another)
    with torch.no_grad():
        cache = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
    torch.testing.assert_close(during[0], logits(model, "$1+3="))
    torch.testing.assert_close(logits(model, ids[:, -1:], past_key_values=cache), logits(model, ids)[:, -1:])


def test_a_cache_that_does_not_keep_every_token_is_refused():
    model = model_of("Llama")
    attach(model, LINES, RULE)
    with pytest.raises(ValueError, match="got a static one: leave cache_implementation out"):
        model.generate(IDS_OF[:, :7], max_new_tokens=4, cache_implementation="static", pad_token_id=IDS["@"])


def test_layers_with_a_window_of_their_own_are_refused():
    config = transformers.GPTNeoConfig(
        vocab_size=32, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
    )
    with pytest.raises(ValueError, match="GPTNeoForCausalLM has layers of local attention"):
        attach(transformers.GPTNeoForCausalLM(config).eval(), LINES, RULE)
