"""Where data comes from: one file a source, found by name in `Source.registry`."""

from fedtail.data.dataset import Source
from fedtail.data.sources.arrays import Arrays
from fedtail.data.sources.cifar import Cifar10, Cifar100
from fedtail.data.sources.digits import Digits
from fedtail.data.sources.femnist import Femnist
from fedtail.data.sources.folder import Folder
from fedtail.data.sources.hf import HuggingFace
from fedtail.data.sources.imagenet_lt import ImagenetLT
from fedtail.data.sources.imu import Imu
from fedtail.data.sources.mnist import FashionMnist, Mnist
from fedtail.data.sources.npz import Npz
from fedtail.data.sources.speech_commands import SpeechCommands
from fedtail.data.sources.svhn import Svhn
from fedtail.data.sources.synthetic import Synthetic
from fedtail.data.sources.table import TableFile
from fedtail.data.sources.torch_data import TorchData

__all__ = [
    "Arrays",
    "Cifar10",
    "Cifar100",
    "Digits",
    "FashionMnist",
    "Femnist",
    "Folder",
    "HuggingFace",
    "ImagenetLT",
    "Imu",
    "Mnist",
    "Npz",
    "Source",
    "SpeechCommands",
    "Svhn",
    "Synthetic",
    "TableFile",
    "TorchData",
]
