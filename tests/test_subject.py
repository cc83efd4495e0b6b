"""The judge of a batch in which images repeat: it knows each place of it."""

import numpy as np
import pytest

from xframe import zoo
from xframe.prebuilt import convolution
from xframe.subject import Subject, repeated

BATCH, IMAGES = 12, 3


def test_images_repeat_equally_often_in_random_order():
    order = repeated(BATCH, IMAGES, 0)
    assert np.bincount(order).tolist() == [4, 4, 4]
    assert order.tolist() != repeated(BATCH, IMAGES, 1).tolist() != sorted(order)
    assert repeated(BATCH, None, 0) is None
    assert repeated(BATCH, BATCH, 0) is None


@pytest.mark.parametrize("of_file", [False, True])
def test_every_place_is_judged_by_the_exact_outputs_of_its_image(plugins, tmp_path, of_file):
    path = convolution.write(zoo.spec("tiny"), "conv2", BATCH, tmp_path / "c.onnx")
    subject, order = Subject.of(str(path) if of_file else "tiny"), repeated(BATCH, IMAGES, 0)
    feeds = subject.feeds(BATCH, 0, order)
    (one,), (other,) = feeds
    assert len(one) == BATCH
    assert not np.array_equal(one, other)
    assert np.array_equal(one[order == 1], np.broadcast_to(one[order == 1][:1], one[order == 1].shape))
    verdict, differ = subject.judge(feeds, order)
    exact = [[j.value.astype(np.float32) for j in subject.exact(feed, ())] for feed in feeds]
    assert differ
    right = verdict(exact, ())
    whole = subject.judge(feeds)[0](exact, ())
    assert right.ok
    assert (right.ratio, right.error) == (whole.ratio, whole.error)
    for place in (0, BATCH - 1):
        wrong = [[x.copy() for x in outputs] for outputs in exact]
        wrong[1][0][place] += 1
        found = verdict(wrong, ())
        assert not found.ok
        assert f" at [{place}, " in found.reason
    other_place = int(np.flatnonzero(order != order[0])[0])
    exchanged = [[x.copy() for x in outputs] for outputs in exact]
    exchanged[0][0][[0, other_place]] = exchanged[0][0][[other_place, 0]]
    assert not verdict(exchanged, ()).ok
    assert "has shape" in verdict([[x[:-1] for x in outputs] for outputs in exact], ()).reason
