"""Inputs, given in each of the ways and refused in words."""

import itertools
import pickle

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from xframe.check.inputs import feeds, settled
from xframe.errors import UsageError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.ones((1, 4), np.float32)
ONE, TWO = ([(2, 3)], ["x"]), ([(2, 3), (1, 4)], ["x", "y"])


def same(found, want):
    assert [len(f) for f in found] == [len(f) for f in want]
    for got, expected in zip(itertools.chain(*found), itertools.chain(*want), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected)


def test_seeded_inputs_differ_and_repeat():
    first, words = feeds(None, *TWO, count=3, seed=4)
    same(first, feeds(None, *TWO, count=3, seed=4)[0])
    arrays = [a.tobytes() for feed in first for a in feed]
    assert len(set(arrays)) == 6
    assert words == "3 seeded inputs of N(0, 1), seed 4"
    assert not np.array_equal(first[0][0], feeds(None, *TWO, count=3, seed=5)[0][0][0])


def test_seeded_inputs_in_a_range():
    (feed,), words = feeds(None, [(50, 40)], ["x"], count=1, value_range=(2, 3))
    assert feed[0].min() >= 2
    assert 2.4 < feed[0].mean() < 2.6
    assert feed[0].max() <= 3
    assert words == "1 seeded input uniform in [2, 3], seed 0"


def write(tmp_path, name, array):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(numpy_helper.from_array(array).SerializeToString())
    return path


def generator():
    yield X
    yield {"x": X + 1}
    yield [X + 2]


def test_one_input_in_each_of_the_ways(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X)
    np.savez(tmp_path / "order.npz", X)
    single = write(tmp_path, "tensor.pb", X)
    first = write(tmp_path, "data/test_data_set_0/input_0.pb", X)
    paths = ["x.npy", tmp_path / "x.npz", tmp_path / "order.npz", str(single), first, first.parent, tmp_path / "data"]
    for given in (X, [X], (X,), {"x": X}, [[X]], [{"x": X}], *paths):
        path = tmp_path / given if isinstance(given, str) else given
        found, words = feeds(path, *ONE)
        same(found, [[X]])
        assert words.startswith("1 given input")
    same(feeds([X, X + 1], *ONE)[0], [[X], [X + 1]])
    same(feeds([tmp_path / "x.npy", X + 1], *ONE)[0], [[X], [X + 1]])
    same(feeds(generator, *ONE, count=5)[0], [[X], [X + 1], [X + 2]])
    same(feeds(generator(), *ONE, count=2)[0], [[X], [X + 1]])
    same(feeds(lambda: X, *ONE)[0], [[X]])
    same(feeds(itertools.repeat(X), *ONE, count=2)[0], [[X], [X]])


def test_two_inputs_in_each_of_the_ways(tmp_path):
    np.savez(tmp_path / "named.npz", y=Y, x=X)
    np.savez(tmp_path / "order.npz", X, Y)
    for k in (10, 2):
        write(tmp_path, f"data/test_data_set_{k}/input_0.pb", X + k)
        folder = write(tmp_path, f"data/test_data_set_{k}/input_1.pb", Y).parent
    for given in ([X, Y], (X, Y), {"y": Y, "x": X}, tmp_path / "named.npz", tmp_path / "order.npz"):
        same(feeds(given, *TWO)[0], [[X, Y]])
    same(feeds(folder, *TWO)[0], [[X + 2, Y]])
    same(feeds(folder / "input_0.pb", *TWO)[0], [[X + 2, Y]])
    same(feeds(tmp_path / "data", *TWO)[0], [[X + 2, Y], [X + 10, Y]])
    same(feeds([tmp_path / "data", [X, Y]], *TWO)[0], [[X + 2, Y], [X + 10, Y], [X, Y]])


def test_what_was_settled_is_not_run_again():
    given = settled(iter([[X, Y], {"y": Y, "x": X + 1}]), 2)
    for _ in range(2):
        same(feeds(given, *TWO)[0], [[X, Y], [X + 1, Y]])
    same(feeds(settled(iter([X, X + 1])), None)[0], [[X], [X + 1]])
    same(feeds(settled([X, Y]), None)[0], [[X, Y]])


def test_casts_are_told():
    found, words = feeds([X.astype(np.float64), Y.astype(np.int8)], *TWO)
    same(found, [[X, Y]])
    assert words == "1 given input; cast from float64 to float32; cast from int8 to float32"


def test_arrays_of_frameworks():
    torch = pytest.importorskip("torch")
    same(feeds(torch.tensor(X, requires_grad=True), *ONE)[0], [[X]])


def test_a_free_size_accepts_any():
    same(feeds(X, [(None, 3)], ["x"])[0], [[X]])
    same(feeds(X, None)[0], [[X]])


class Cursed:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("cursed")


def broken():
    yield X
    raise RuntimeError("cursed")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Y, r"input x must be \[2, 3\], the given one is \[1, 4\]"),
        (X[0], r"input x must be \[2, 3\], the given one is \[3\]"),
        ([[X, Y]], r"takes 1 inputs \(x\), and 2 arrays"),
        ({"z": X}, "given for z; the model takes x"),
        (X * np.nan, "6 values that are NaN or infinite"),
        (np.where(X == 1, 1e300, X.astype(float)), "1 values that are NaN or infinite in float32"),
        (X.astype(complex), "complex"),
        (np.array([["a", "b"]]), "<U1"),
        (np.array([[{}]]), "holds object"),
        (3, "a int can't be inputs"),
        ([[1.0, 2.0]], "failed|float|array"),
        ([], "is empty"),
        (iter([]), "gave nothing"),
        (broken, "failed: RuntimeError: cursed"),
        (lambda x: X, "failed: TypeError"),
        (Cursed(), "can't be read as an array: cursed"),
        ("no.npy", "no such file"),
        ("no.txt", "no .npy, .npz or .pb"),
    ],
)
def test_refusals(given, words):
    with pytest.raises(UsageError, match=words) as e:
        feeds(given, *ONE)
    assert "\n" not in str(e.value)


class Boom:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_files_that_are_none(tmp_path):
    contents = {
        "text.npy": b"hello", "empty.npy": b"", "text.npz": b"PK\x03\x04 nothing", "pickled.npy": pickle.dumps(Boom()),
        "cut.npy": None, "bad.pb": b"\xff\xff\xff\xff", "objects.npy": None, "huge.npy": None,
    }  # fmt: skip
    np.save(tmp_path / "objects.npy", np.array([Boom()], object), allow_pickle=True)
    np.save(tmp_path / "whole.npy", X)
    header = (tmp_path / "whole.npy").read_bytes()
    contents["cut.npy"] = header[:-5]
    contents["huge.npy"] = header.replace(b"(2, 3), } ", b"(99999999999999, 3), } ")
    for name, content in contents.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=f"{name} can't be read as arrays, and pickled objects are refused"):
            feeds(tmp_path / name, *ONE)
    with pytest.raises(UsageError, match=r"has no input_0\.pb"):
        feeds(tmp_path, *ONE)


def test_a_tensor_that_points_elsewhere(tmp_path):
    tensor = numpy_helper.from_array(X)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    (tmp_path / "input_0.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(UsageError, match="in another file"):
        feeds(tmp_path, *ONE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 0}, "0 inputs"),
        ({"value_range": (1, 1)}, "from a number to a larger one"),
        ({"value_range": (0, float("inf"))}, "from a number to a larger one"),
        ({"value_range": 3}, "no pair"),
        ({"given": X, "value_range": (0, 1)}, "leave one of the two out"),
        ({"shapes": None}, "not known"),
        ({"shapes": [(None, 3)]}, r"input x is \[\?, 3\]"),
    ],
)
def test_requests_that_make_no_sense(options, words):
    with pytest.raises(UsageError, match=words):
        feeds(**{"given": None, "shapes": ONE[0], "names": ONE[1], **options})
