"""The order of samples: a function of seed, epoch and length alone. No world, no worker, no random state."""

import numpy as np
import numpy.typing as npt


class SampleOrder:
    """An endless stream of sample indices: epoch after epoch, each a permutation of all samples.

    A global batch is a slice of the stream and may span two epochs, so no sample is dropped and no batch is short.

    Args:
        length: samples in one epoch, 1 or more.
        seed: base of all permutations.
        shuffle: without it every epoch is 0, 1, 2, ...
    """

    def __init__(self, length: int, *, seed: int, shuffle: bool) -> None:
        if length < 1:
            raise ValueError("the data set is empty")
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self._epoch = -1
        self._permutation: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def slice(self, begin: int, count: int) -> list[int]:
        """The indices at positions `begin` to `begin + count` of the stream; positions count samples from 0."""
        indices: list[int] = []
        while count > 0:
            epoch, offset = divmod(begin, self.length)
            taken = min(count, self.length - offset)
            if self.shuffle:
                indices.extend(self._of_epoch(epoch)[offset : offset + taken].tolist())
            else:
                indices.extend(range(offset, offset + taken))
            begin, count = begin + taken, count - taken
        return indices

    def _of_epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, epoch])))
            self._permutation = generator.permutation(self.length)
            self._epoch = epoch
        return self._permutation
