"""Train ResNet-34 on pictures from memory: mixed precision with a scaler, workers, cosine schedule."""

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, EPOCHS, WORKERS = 96, 2, 8


class Pictures(Dataset):
    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(256, (256, 3, 224, 224), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(100, (n,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int):
        image = self.pixels[i % len(self.pixels)].float() / 255
        return image.flip(-1) if i % 2 else image, self.labels[i]


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Pictures(BATCH * 30), BATCH, shuffle=True, num_workers=WORKERS, pin_memory=True, drop_last=True)
    model = torchvision.models.resnet34(num_classes=100).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    scaler = torch.amp.GradScaler(device)
    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.float16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        schedule.step()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
