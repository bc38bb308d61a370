"""The parts of a block against plain loops."""

import math

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from headrace.recipes.laq.blocks import (  # noqa: E402
    Block,
    CrossAttention,
    DeltaNetwork,
    FeedForward,
    PositionBias,
    PositionConvolution,
    SelfAttention,
    angle_attention,
    pair_attention,
    patches,
    unpatches,
)
from headrace.recipes.laq.config import LaqConfig  # noqa: E402


def close(a, b, atol=1e-5):
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


def normed(x, weight):
    """A layer norm without bias, written out."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def attend(q, k, v, bias=None):
    """One head of one sample: q [S, d], k and v [C, d], loop by loop."""
    rows = []
    for i, query in enumerate(q):
        logits = torch.stack([8 * (query @ key) for key in k])
        if bias is not None:
            logits = logits + bias[i]
        weights = torch.exp(logits) / torch.exp(logits).sum()
        rows.append(sum(w * value for w, value in zip(weights, v, strict=True)))
    return torch.stack(rows)


def directions(x, scale):
    return x / x.norm(dim=-1, keepdim=True) * scale


def learn_something(module):
    """Parameters that start as ones would hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.7, 0.7)


def self_attention_by_loops(attention, tokens, bias=None):
    """Tokens [S, d] of one sample."""
    width = attention.heads * attention.head_dim
    qkv = normed(tokens, attention.norm.weight) @ attention.to_qkv.weight.T
    heads = []
    for h in range(attention.heads):
        part = slice(h * attention.head_dim, (h + 1) * attention.head_dim)
        q = directions(qkv[:, :width][:, part], attention.q_scale)
        k = directions(qkv[:, width : 2 * width][:, part], attention.k_scale)
        heads.append(attend(q, k, qkv[:, 2 * width :][:, part], None if bias is None else bias[h]))
    return torch.cat(heads, dim=-1) @ attention.to_out.weight.T


def test_attention_across_space_is_that_of_the_loops_with_its_bias():
    attention = SelfAttention(12, heads=2, head_dim=4)
    learn_something(attention)
    x, bias = torch.randn(2, 2, 9, 12), torch.randn(2, 9, 9)
    out = attention.across_space(x, bias)
    for b in range(2):
        for t in range(2):
            close(out[b, t], self_attention_by_loops(attention, x[b, t], bias))


@pytest.mark.parametrize("frames", [2, 3])
def test_attention_across_time_is_that_of_the_loops(frames):
    attention = SelfAttention(12, heads=2, head_dim=4)
    learn_something(attention)
    x = torch.randn(2, frames, 4, 12)
    out = attention.across_time(x)
    for b in range(2):
        for n in range(4):
            close(out[b, :, n], self_attention_by_loops(attention, x[b, :, n]))


def test_attention_over_a_pair_equals_the_general_one_and_so_do_its_gradients():
    q, k, v = (torch.randn(3, 2, 4, 2, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    fast = pair_attention(q, k, v)
    plain = angle_attention(*(y.movedim(1, 3) for y in (q, k, v))).movedim(3, 1)
    close(fast, plain)
    weight = torch.randn_like(plain)
    for a, b in zip(
        torch.autograd.grad((fast * weight).sum(), (q, k, v)),
        torch.autograd.grad((plain * weight).sum(), (q, k, v)),
        strict=True,
    ):
        close(a, b)


def test_cross_attention_sees_the_context_and_two_null_keys():
    attention = CrossAttention(12, heads=2, head_dim=4)
    learn_something(attention)
    assert attention.null_kv.shape == (2, 2, 2, 4)
    x, context = torch.randn(2, 1, 9, 12), torch.randn(2, 3, 12)
    out = attention(x, context)
    for b in range(2):
        queries = normed(x[b, 0], attention.norm.weight) @ attention.to_q.weight.T
        kv = context[b] @ attention.to_kv.weight.T
        heads = []
        for h in range(2):
            part = slice(h * 4, h * 4 + 4)
            k = torch.cat([attention.null_kv[0, :, h], kv[:, :8][:, part]])
            v = torch.cat([attention.null_kv[1, :, h], kv[:, 8:][:, part]])
            q = directions(queries[:, part], attention.q_scale)
            heads.append(attend(q, directions(k, attention.k_scale), v))
        close(out[b, 0], torch.cat(heads, dim=-1) @ attention.to_out.weight.T)


def test_attention_stays_near_itself_in_bfloat16():
    attention = SelfAttention(32, heads=2, head_dim=16)
    x = torch.randn(2, 2, 4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        short = attention.across_space(x), attention.across_time(x)
    for a, b in zip(short, (attention.across_space(x), attention.across_time(x)), strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b, atol=0.02, rtol=0.05)


@pytest.mark.parametrize("method", ["conv", "shift"])
@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_the_position_convolution_is_a_causal_depthwise_3d_convolution(frames, method):
    peg = PositionConvolution(6)
    peg.method = method
    x = torch.randn(2, frames, 16, 6)
    volume = x.view(2, frames, 4, 4, 6).permute(0, 4, 1, 2, 3)  # [B, d, T, rows, columns]
    padded = functional.pad(volume, (1, 1, 1, 1, 2, 0))  # two frames before, none after
    plain = functional.conv3d(padded, peg.weight, groups=6)
    close(peg(x), plain.permute(0, 2, 3, 4, 1).reshape(2, frames, 16, 6))


def test_the_position_convolution_never_looks_ahead_in_time():
    peg = PositionConvolution(6)
    x = torch.randn(1, 2, 16, 6)
    other = x.clone()
    other[:, 1] += 1
    assert torch.equal(peg(x)[:, 0], peg(other)[:, 0])
    assert not torch.equal(peg(x)[:, 1], peg(other)[:, 1])
    other = x.clone()
    other[:, 0] += 1
    assert not torch.allclose(peg(x)[:, 1], peg(other)[:, 1])


@pytest.mark.parametrize(("dim", "inner"), [(6, 16), (6, 11)])
def test_the_feedforward_is_gated_and_its_padding_changes_nothing(dim, inner):
    part = FeedForward(dim, inner)
    learn_something(part)
    x = torch.randn(3, dim)
    value, gate = (normed(x, part.norm.weight) @ weight.T for weight in part.inside)
    gelu = gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2)))
    close(part(x), (value * gelu) @ part.out.T)
    part(x).sum().backward()
    assert part.inside.grad.shape == (2, inner, dim)


def test_the_position_bias_is_the_mlp_of_the_signed_log_of_the_offset():
    bias = PositionBias(grid=3, hidden=5, heads=2)
    table = bias()
    assert table.shape == (2, 9, 9)
    for query in range(9):
        for key in range(9):
            rows, columns = query // 3 - key // 3, query % 3 - key % 3
            squeezed = [math.copysign(math.log1p(abs(d)), d) for d in (rows, columns)]
            close(table[:, query, key], bias.net(torch.tensor(squeezed)))


def test_blocks_have_no_biases():
    block = Block(LaqConfig.tiny(), "space", cross=True)
    assert not [name for name, _ in block.named_parameters() if name.endswith("bias")]


def test_patches_are_put_together_as_they_were_cut():
    frames = torch.arange(2 * 3 * 2 * 8 * 8).view(2, 3, 2, 8, 8)
    cut = patches(frames, 4)
    assert cut.shape == (2, 2, 4, 48)
    assert cut[1, 1, 2].view(4, 4, 3).equal(frames[1, :, 1, 4:, :4].permute(1, 2, 0))
    assert unpatches(cut[:, 1], 4).equal(frames[:, :, 1])


@pytest.mark.parametrize(
    ("grid", "codes", "kernel"),
    [
        (8, 1, (4, 4)),
        (8, 2, (3, 4)),
        (8, 4, (3, 3)),
        (4, 4, (1, 1)),
        (4, 2, (1, 2)),
        (7, 4, (3, 3)),
    ],
)
def test_the_kernel_of_the_delta_network_leaves_the_grid_of_codes(grid, codes, kernel):
    config = LaqConfig.tiny(image_size=8 * grid, codes=codes)
    network = DeltaNetwork(config)
    assert network.kernel == kernel
    tokens = torch.randn(3, 2, grid * grid, config.dim)
    delta = network(tokens)
    assert delta.shape == (3, codes, config.code_dim)
    close(network(tokens.flip(1)), -delta)  # the way back
    close(network(tokens[:, :1].expand(-1, 2, -1, -1)), torch.zeros_like(delta))  # no way at all
