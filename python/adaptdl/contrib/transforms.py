"""Transforms of images."""

import torch

__all__ = ["Compose", "ImageToTensor", "NormalizeImage"]


class Compose:
    """Transforms one after the other.

    Args:
        transforms (list): Functions of an image.
    """

    def __init__(self, transforms):
        for number, transform in enumerate(transforms):
            if not callable(transform):
                raise TypeError(f"Compose: transform {number} must be a function, not {type(transform).__name__}")
        self.transforms = list(transforms)

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self):
        return f"Compose({self.transforms!r})"


class ImageToTensor:
    """An image [height, width, channels] or [height, width] of bytes, an array or something that can be made
    one, becomes a tensor [channels, height, width] of floats from 0 to 1. Images of floats keep their values."""

    def __call__(self, image):
        if not isinstance(image, torch.Tensor):
            import numpy
            image = torch.from_numpy(numpy.array(image))
        if image.dim() not in (2, 3):
            raise ValueError(f"ImageToTensor: an image has 2 or 3 dimensions, not {image.dim()}")
        image = image.unsqueeze(0) if image.dim() == 2 else image.permute(2, 0, 1)
        image = image.contiguous()
        return image.float().div(255) if image.dtype == torch.uint8 else image.float()

    def __repr__(self):
        return "ImageToTensor()"


class NormalizeImage:
    """``(image - mean) / std`` by channel.

    Args:
        mean, std (Sequence): A number for each channel.
        inplace (bool): Whether the image itself is changed.
    """

    def __init__(self, mean, std, inplace=False):
        if len(mean) != len(std):
            raise ValueError(f"NormalizeImage: {len(mean)} means and {len(std)} deviations")
        if any(value == 0 for value in std):
            raise ValueError(f"NormalizeImage: a deviation of 0 in {tuple(std)}")
        self.mean, self.std, self.inplace = tuple(mean), tuple(std), inplace

    def __call__(self, image):
        if image.dim() != 3 or image.size(0) != len(self.mean):
            raise ValueError(f"NormalizeImage: an image of shape {tuple(image.shape)}, with {len(self.mean)} channels "
                             "in front expected")
        mean = torch.tensor(self.mean, dtype=image.dtype).view(-1, 1, 1)
        std = torch.tensor(self.std, dtype=image.dtype).view(-1, 1, 1)
        return image.sub_(mean).div_(std) if self.inplace else (image - mean) / std

    def __repr__(self):
        return f"NormalizeImage(mean={self.mean}, std={self.std})"
