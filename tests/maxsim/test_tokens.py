"""The front door: what is accepted, what is copied, what is refused and by which name."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import maxsim
from maxsim.tokens import TokenBatch, documents_per_query, require_numbers, tokens

x = torch.arange(2 * 4 * 3, dtype=torch.float32).view(2, 4, 3)


def valid_rows(batch: TokenBatch) -> list[list[list[float]]]:
    """The valid tokens of every sequence, as lists."""
    padded, valid = batch.padded()
    return [padded[n][valid[n]].tolist() for n in range(batch.count)]


def same_storage(batch: TokenBatch, tensor: torch.Tensor) -> bool:
    return batch.values.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


class TestLayouts:
    def test_a_dense_tensor_is_viewed(self):
        batch = tokens(x)
        assert same_storage(batch, x)
        assert (batch.count, batch.pitch, batch.max_length, batch.dense_shape) == (2, 4, 4, (2, 4))
        assert valid_rows(batch) == x.tolist()

    def test_one_sequence_needs_no_batch_dimension(self):
        batch = tokens(x[0])
        assert (batch.count, batch.max_length) == (1, 4)
        assert valid_rows(batch) == [x[0].tolist()]

    @pytest.mark.parametrize(
        "view",
        [
            x[:, :3],
            x[:, ::2],
            x[1:],
            x[:, 1:2],
            x[:1, 1:3],
            x[:1].expand(5, 4, 3),
            x.repeat(1, 1, 2)[:, :, 2:5],
            x[:, :, :1],
        ],
        ids=["rows", "every second", "offset", "one token", "one sequence", "expanded", "features", "one feature"],
    )
    def test_views_with_one_row_stride_are_not_copied(self, view):
        batch = tokens(view)
        assert same_storage(batch, view)
        assert valid_rows(batch) == view.tolist()
        assert batch.values.stride(1) == 1

    @pytest.mark.parametrize(
        "view",
        [
            x.transpose(1, 2),
            x.transpose(0, 1),
            x[:, :1].expand(2, 4, 3),
            x[:, :, ::2],
            torch.zeros(100).as_strided((2, 3, 4), (11, 4, 1)),
        ],
        ids=["features outermost", "batch innermost", "one token expanded", "every second feature", "odd pitch"],
    )
    def test_other_strides_score_after_one_copy(self, view):
        batch = tokens(view)
        assert batch.values.stride(1) == 1
        assert valid_rows(batch) == view.tolist()

    @pytest.mark.parametrize("hole", [False, True])
    @pytest.mark.parametrize(
        "view", [lambda t: t, lambda t: t[:, :3], lambda t: t.transpose(0, 1), lambda t: t[:1].expand(3, 4, 3)]
    )
    def test_a_gradient_flows_back_to_the_callers_tensor_through_any_layout(self, view, hole):
        base = x.clone().requires_grad_()
        mask = torch.ones(view(base).shape[:2], dtype=torch.bool)
        mask[0, 0] = not hole
        padded, valid = tokens(view(base), mask=mask).padded()
        padded[valid].sum().backward()
        (expected,) = torch.autograd.grad((view(base) * mask[..., None]).sum(), base)
        assert torch.equal(base.grad, expected)

    def test_packed_rows_keep_their_offsets(self):
        batch = tokens(x.view(8, 3), cu_seqlens=torch.tensor([0, 3, 3, 8], dtype=torch.int32))
        assert same_storage(batch, x)
        assert (batch.count, batch.max_length, batch.total_rows, batch.dense_shape) == (3, 5, 8, None)
        assert valid_rows(batch) == [x.view(8, 3)[:3].tolist(), [], x.view(8, 3)[3:].tolist()]

    @pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (0, 0, 3), (0, 3)])
    def test_nothing_is_a_batch_too(self, shape):
        batch = tokens(torch.empty(shape))
        assert batch.count == (shape[0] if len(shape) == 3 else 1)
        assert valid_rows(batch) == [[]] * batch.count
        assert tokens(torch.empty(0, 3), cu_seqlens=torch.tensor([0])).count == 0


class TestMasks:
    def test_right_padding_needs_only_lengths(self):
        batch = tokens(x, mask=torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]))
        assert same_storage(batch, x)
        assert batch.starts is None
        assert batch.lengths is not None
        assert batch.lengths.tolist() == [2, 0]
        assert batch.max_length == 2
        assert valid_rows(batch) == [x[0, :2].tolist(), []]

    def test_left_padding_starts_late_without_a_copy(self):
        batch = tokens(x, mask=torch.tensor([[False, False, True, True], [True, True, True, True]]))
        assert same_storage(batch, x)
        assert batch.shift is not None
        assert batch.shift.tolist() == [2, 0]
        assert valid_rows(batch) == [x[0, 2:].tolist(), x[1].tolist()]

    def test_holes_are_compacted_and_remember_their_positions(self):
        batch = tokens(x, mask=torch.tensor([[1, 0, 1, 0], [0, 1, 1, 1]]))
        assert batch.positions is not None
        assert batch.positions.tolist() == [0, 2, 1, 2, 3]
        assert batch.dense_shape == (2, 4)
        assert valid_rows(batch) == [x[0, ::2].tolist(), x[1, 1:].tolist()]

    def test_lengths_and_their_mask_are_the_same_batch(self):
        lengths = torch.tensor([3, 1])
        assert valid_rows(tokens(x, lengths=lengths)) == valid_rows(tokens(x, mask=torch.arange(4) < lengths[:, None]))


class TestSelect:
    def test_sequences_are_repeated_and_reordered_over_the_same_rows(self):
        batch = tokens(x.view(8, 3), cu_seqlens=torch.tensor([0, 3, 3, 8]))
        chosen = batch.select(torch.tensor([[2, 0], [2, 1]]))
        assert same_storage(chosen, x)
        rows = valid_rows(batch)
        assert valid_rows(chosen) == [rows[2], rows[0], rows[2], rows[1]]

    def test_a_dense_and_a_left_padded_batch_can_be_selected_from(self):
        assert valid_rows(tokens(x).select(torch.tensor([1]))) == [x[1].tolist()]
        padded = tokens(x, mask=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])).select(torch.tensor([1, 0]))
        assert valid_rows(padded) == [x[1].tolist(), x[0, 1:].tolist()]
        assert padded.shift is not None
        assert padded.shift.tolist() == [0, 1]

    @pytest.mark.parametrize("index", [torch.tensor([2]), torch.tensor([-1]), torch.tensor([0.0])])
    def test_an_index_that_names_no_sequence_is_refused(self, index):
        with pytest.raises(ValueError, match="index"):
            tokens(x).select(index)

    def test_an_empty_index_selects_nothing(self):
        assert tokens(x).select(torch.empty(0, dtype=torch.int64)).count == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"lengths": torch.tensor([1.0, 2.0])}, "d_lengths: is torch.float32"),
            ({"lengths": [1, 2]}, "d_lengths: is list"),
            ({"lengths": torch.tensor([True, False])}, "d_lengths: is torch.bool"),
            ({"lengths": torch.tensor([1])}, r"d_lengths: shape is \(1,\); expected \(2,\)"),
            ({"lengths": torch.tensor([5, 1])}, r"d_lengths: holds 5; .*\[0, 4\]"),
            ({"lengths": torch.tensor([-1, 1])}, "d_lengths: holds -1"),
            ({"lengths": torch.tensor([1, 1], device="meta")}, "d_lengths: is on meta"),
            ({"mask": torch.ones(2, 3, dtype=torch.bool)}, r"d_mask: shape is \(2, 3\); expected \(2, 4\)"),
            ({"mask": torch.ones(2, 4)}, "d_mask: is torch.float32"),
            ({"mask": torch.ones(2, 4, dtype=torch.bool, device="meta")}, "d_mask: is on meta"),
            ({"mask": torch.ones(2, 4, dtype=torch.bool), "lengths": torch.tensor([1, 1])}, "pass one of them"),
            ({"cu_seqlens": torch.tensor([0, 8])}, "d_cu_seqlens the rows are packed"),
        ],
    )
    def test_a_bad_extent_names_the_argument(self, options, message):
        with pytest.raises(ValueError, match=message):
            tokens(x, **options)

    @pytest.mark.parametrize(
        ("offsets", "message"),
        [
            (torch.tensor([1, 8]), "starts at 1"),
            (torch.tensor([0, 5, 3, 8]), "decreases by 2"),
            (torch.tensor([0, 5]), "ends at 5, but Q has 8 rows"),
            (torch.tensor([0, 9]), "ends at 9"),
            (torch.tensor([], dtype=torch.int64), r"shape is \(0,\)"),
            (torch.tensor([[0, 8]]), r"shape is \(1, 2\)"),
            (torch.tensor([0.0, 8.0]), "is torch.float32"),
            (torch.tensor([0, 8], device="meta"), "is on meta"),
        ],
    )
    def test_bad_offsets_say_what_is_wrong(self, offsets, message):
        with pytest.raises(ValueError, match=f"q_cu_seqlens: {message}"):
            tokens(x.view(8, 3), cu_seqlens=offsets, role="Q")

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (torch.zeros(3), r"D: shape is \(3,\)"),
            (torch.zeros(1, 2, 3, 4), r"D: shape is \(1, 2, 3, 4\)"),
            (torch.zeros(2, 0), "embedding dimension must be at least 1"),
            (torch.zeros(2, 3, dtype=torch.int8), "D: dtype is torch.int8"),
            (torch.zeros(2, 3, dtype=torch.complex64), "D: dtype is torch.complex64"),
            (torch.zeros(2, 3).to_sparse(), "D: layout is torch.sparse_coo"),
        ],
    )
    def test_bad_values_say_what_is_wrong(self, values, message):
        with pytest.raises(ValueError, match=message):
            tokens(values)

    @pytest.mark.parametrize(
        ("shape", "options"),
        [
            ((2, 4, 3), {"lengths": torch.tensor([1, 2])}),
            ((2, 4, 3), {"mask": torch.ones(2, 4, dtype=torch.bool)}),
            ((8, 3), {"cu_seqlens": torch.tensor([0, 8])}),
        ],
        ids=["lengths", "mask", "offsets"],
    )
    @pytest.mark.parametrize("extent", ["meta", "cpu"])
    def test_what_would_be_read_on_the_device_meta_is_refused_by_name(self, shape, options, extent):
        given = {name: value.to(extent) for name, value in options.items()}
        with pytest.raises(ValueError, match=r"^Q: is on the device meta, which holds no numbers; give tensors of"):
            tokens(torch.ones(shape, device="meta"), **given, role="Q")

    def test_a_selection_on_the_device_meta_is_refused_by_name(self):
        with pytest.raises(ValueError, match=r"^index: is on the device meta"):
            tokens(torch.ones(2, 4, 3, device="meta")).select(torch.tensor([0], device="meta"))

    def test_what_is_no_tensor_is_a_type_error(self):
        with pytest.raises(TypeError, match="Q: expected a torch"):
            tokens([[1.0]], role="Q")  # type: ignore[arg-type]

    def test_a_batch_is_not_described_twice(self):
        batch = tokens(x)
        assert tokens(batch) is batch
        with pytest.raises(ValueError, match="D: already a TokenBatch"):
            tokens(batch, lengths=torch.tensor([1, 1]))


class TestPairing:
    def test_counts_that_do_not_fit_are_refused(self):
        two, three = tokens(x), tokens(x[:1].expand(3, 4, 3))
        assert documents_per_query(two, three, "all") == 3
        assert documents_per_query(two, tokens(x[:1].expand(6, 4, 3)), "candidates") == 3
        with pytest.raises(ValueError, match="3 documents for 2 queries"):
            documents_per_query(two, three, "pairs")
        with pytest.raises(ValueError, match="3 documents for 2 queries"):
            documents_per_query(two, three, "candidates")
        with pytest.raises(ValueError, match="pairing: 'some' is not one of all, pairs, candidates"):
            documents_per_query(two, two, "some")  # type: ignore[arg-type]


def test_a_rectangle_is_a_view_where_sequences_lie_one_pitch_apart_and_a_copy_elsewhere() -> None:
    x = torch.arange(24.0).view(4, 3, 2)
    dense = tokens(x)
    rows, valid = dense.padded(1, 3)
    assert rows.data_ptr() == x[1].data_ptr()
    assert rows.equal(x[1:3])
    assert valid.all()
    assert dense.full()
    chosen = dense.select(torch.tensor([3, 0]))
    assert chosen.padded()[0].equal(x[[3, 0]])
    masked = tokens(x, lengths=torch.tensor([3, 1, 0, 2]))
    assert not masked.full()
    assert masked.padded(1)[1].sum(-1).tolist() == [1, 0, 2]
    expanded = tokens(x[:1].expand(4, 3, 2))
    assert expanded.padded(2, 4)[0].equal(x[:1].expand(2, 3, 2))
    assert not tokens(x[:, :0]).full(), "documents without a token are masked"


def test_a_nested_tensor_is_refused_by_name():
    with pytest.raises(ValueError, match="Q: is a nested tensor"):
        tokens(torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(2, 8)]), role="Q")


def test_public_names_are_frozen():
    for name in ("LaunchPlan", "TokenBatch", "explain", "maxsim", "maxsim_argmax", "tokens"):
        assert name in maxsim.__all__


def test_lengths_of_int32_and_offsets_of_int64_are_the_caller_s_memory_and_others_are_copies():
    X = torch.zeros(2, 3, 4)
    for dtype, shared in ((torch.int32, True), (torch.int64, False), (torch.uint8, False)):
        lengths = torch.tensor([1, 2], dtype=dtype)
        batch = tokens(X, lengths=lengths)
        lengths.fill_(0)
        assert batch.lengths.tolist() == ([0, 0] if shared else [1, 2])
    for dtype, shared in ((torch.int64, True), (torch.int32, False)):
        offsets = torch.tensor([0, 1, 6], dtype=dtype)
        batch = tokens(X.view(6, 4), cu_seqlens=offsets)
        offsets.fill_(0)
        assert batch.starts.tolist() == ([0, 0] if shared else [0, 1])


@pytest.mark.parametrize(
    "copied",
    [lambda b: pickle.loads(pickle.dumps(b)), copy.copy, copy.deepcopy, lambda b: replace(b, pitch=b.pitch)],
    ids=["pickle", "copy", "deepcopy", "replace"],
)
def test_a_copy_of_a_batch_makes_a_layout_of_its_own(copied):
    """It may have come from another device: a launch by the old layout would be given addresses of this one."""
    batch = tokens(torch.arange(24.0).reshape(2, 3, 4))
    vars(batch)["layout"] = ("of a GPU",)
    found = copied(batch)
    assert torch.equal(found.values, batch.values)
    assert (found.count, found.pitch, found.max_length, found.dense_shape) == (2, 3, 3, (2, 3))
    assert found.layout == tokens(torch.arange(24.0).reshape(2, 3, 4)).layout


def test_lengths_and_offsets_of_any_strides_lie_one_after_the_other():
    """Kernels are given an address and step by one element."""
    x = torch.zeros(3, 4, 2)
    column = torch.tensor([[1, 9], [4, 9], [2, 9]], dtype=torch.int32)[:, 0]
    every = torch.tensor([0, 9, 1, 9, 5, 9, 12, 9])[::2]
    for batch in (
        tokens(x, lengths=column),
        tokens(x, lengths=torch.tensor([3], dtype=torch.int32).expand(3)),
        tokens(x.flatten(0, 1), cu_seqlens=every),
    ):
        assert batch.lengths.is_contiguous()
        assert batch.starts is None or batch.starts.is_contiguous()
    assert tokens(x, lengths=column).lengths.tolist() == [1, 4, 2]


@pytest.mark.parametrize("d", [1, 4])
def test_a_view_with_the_negative_bit_is_read_with_its_sign(d):
    """The imaginary part of a conjugate is the memory of the number itself, and a bit that says minus.

    Tokens of one number are viewed where they lie; of several, every second is copied, which resolves the bit.
    """
    z = torch.complex(torch.ones(2, 3, d), torch.full((2, 3, d), 2.0))
    x = z.conj().imag
    assert x.is_neg()
    batch = tokens(x)
    assert not batch.values.is_neg()
    assert batch.values.eq(-2).all()


def test_tensors_without_extents_are_described_on_the_device_meta_too():
    """Nothing of them is read. The fake tensors of a tracing compiler are of this kind, and name a real device."""
    batch = tokens(torch.ones(2, 4, 3, device="meta"))
    assert (batch.count, batch.max_length, batch.d) == (2, 4, 3)
    with FakeTensorMode():
        require_numbers("Q", torch.ones(2).device)


def test_a_batch_equals_itself_alone():
    """Tensors compared element by element have no one answer, and `in` asks for one."""
    one, other = tokens(x), tokens(x)
    assert one == one
    assert one != other
    assert [other, one].index(one) == 1
    assert len({one, other, one}) == 2
