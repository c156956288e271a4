"""Text in pieces, for back-propagation through time."""

import math
import types

import torch

from adaptdl import env
from adaptdl.torch.data import GO, PASSED, PLAN, AdaptiveDataLoaderMixin, whole

__all__ = ["AdaptiveBPTTIterator"]


class AdaptiveBPTTIterator(AdaptiveDataLoaderMixin):
    """Goes over a text in pieces of ``bptt_len`` tokens: the text is cut into as many streams as the batch
    has rows, and each batch has the next piece of every stream. Replicas take turns: each has every
    ``num_replicas``-th piece. The position survives restarts, on any number of replicas and with another
    batch size, as the same share of the text.

    Batches have the attributes ``text`` and ``target`` (the text one token later), of shape
    [bptt_len, rows] or, with ``batch_first``, [rows, bptt_len], and ``batch_size``.

    Args:
        dataset: The text: a one-dimensional tensor or sequence of numbers; or a data set like those of
            torchtext, with the tokens in ``dataset[0].text`` and ``dataset.fields["text"]``, which turns
            tokens into numbers. (torchtext itself is not needed.)
        batch_size (int): The total number of streams, over all replicas.
        bptt_len (int): Tokens in a piece.
        **kwargs: ``max_batch_size`` and ``local_bsz_bounds``, as for
            :meth:`~adaptdl.torch.data.AdaptiveDataLoaderMixin.autoscale_batch_size`; ``device``,
            ``batch_first``, and ``repeat``: whether a loop never ends. Others of torchtext's iterators are
            accepted and ignored.
    """

    def __init__(self, dataset, batch_size, bptt_len, **kwargs):
        AdaptiveDataLoaderMixin.__init__(self, batch_size)
        self.dataset, self.batch_size = dataset, self._elastic.batch_size
        self.bptt_len = whole("bptt_len", bptt_len)
        self.device = kwargs.pop("device", None)
        self.repeat = bool(kwargs.pop("repeat", False))
        field = getattr(dataset, "fields", {}).get("text")
        self.batch_first = bool(kwargs.pop("batch_first", getattr(field, "batch_first", False)))
        max_batch_size = kwargs.pop("max_batch_size", None)
        local_bsz_bounds = kwargs.pop("local_bsz_bounds", None)
        unknown = set(kwargs) - {"train", "shuffle", "sort", "sort_key", "sort_within_batch",
                                 "batch_size_fn"}
        if unknown:
            raise TypeError("unknown arguments: " + ", ".join(sorted(unknown)))
        if max_batch_size is not None:
            self.autoscale_batch_size(max_batch_size, local_bsz_bounds)

    @classmethod
    def splits(cls, datasets, batch_sizes=None, **kwargs):
        """One iterator for each of several texts, the first of them for training.

        Args:
            datasets (tuple): The texts.
            batch_sizes (tuple): The batch size of each; None: ``batch_size`` is that of all.
            **kwargs: As for the class.

        Returns:
            tuple: The iterators.
        """
        if batch_sizes is None:
            batch_sizes = [kwargs.pop("batch_size")] * len(datasets)
        return tuple(cls(dataset, size, train=i == 0, **kwargs)
                     for i, (dataset, size) in enumerate(zip(datasets, batch_sizes)))

    def _tokens(self):
        if getattr(self.dataset, "fields", {}).get("text") is not None:
            return len(self.dataset[0].text)
        return torch.as_tensor(self.dataset).numel()

    def __len__(self):
        """How many pieces a stream has, at the present batch size."""
        return math.ceil((self._tokens() / self.batch_size - 1) / self.bptt_len)

    def _streams(self, count):
        """The text as a tensor [length, count], padded at its end."""
        field = getattr(self.dataset, "fields", {}).get("text")
        if field is not None:
            text = list(self.dataset[0].text)
            pad = -len(text) % count
            numbers = field.numericalize([text + [field.pad_token] * pad], device=self.device).view(-1)
        else:
            numbers = torch.as_tensor(self.dataset).view(-1)
            pad = -numbers.numel() % count
            if self.device is not None:
                numbers = numbers.to(self.device)
            if pad:
                numbers = torch.cat([numbers, numbers.new_zeros(pad)])
        return numbers.view(count, -1).t().contiguous()

    def __iter__(self):
        """The pieces of this replica, as often as every other's."""
        elastic = self._elastic
        with elastic.context():
            if elastic.skipdone():
                return
            what = PLAN
            while True:
                if what == PLAN:
                    self.batch_size = elastic.sync_local_bsz()
                    rank, replicas = env.replica_rank(), env.num_replicas()
                    stride = self.bptt_len * replicas
                    data = self._streams(self.batch_size)
                    elastic.end_index = data.size(0)
                    # Targets are one token later: so many tokens can be text.
                    end = max(data.size(0) - 1, 0)
                    first, i = elastic.current_index, 0
                    # The last replica's pieces decide how many there are for all.
                    count = max(-(-(end - first - self.bptt_len * (replicas - 1)) // stride), 0)
                what = elastic._advance(i == count)
                if what == GO:
                    elastic._step(self.batch_size, i == count - 1)
                    place = first + i * stride + rank * self.bptt_len
                    length = min(self.bptt_len, end - place)
                    text, target = data[place:place + length], data[place + 1:place + 1 + length]
                    if self.batch_first:
                        text, target = text.t().contiguous(), target.t().contiguous()
                    yield types.SimpleNamespace(text=text, target=target, batch_size=self.batch_size)
                    i += 1
                    elastic.current_index = first + i * stride
                    elastic._commit()
                elif what == PASSED:
                    if not self.repeat:
                        return
                    elastic.current_index = 0
                    what = PLAN
