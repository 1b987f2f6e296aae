"""GoogLeNet: a named tuple with auxiliary outputs in training, a tensor in evaluation."""

from common import classification, images, training_job
from torchvision.models import GoogLeNet


def loss(output, target):
    return classification(output.logits, target) + 0.3 * classification(output.aux_logits1, target)


def job():
    return training_job(lambda: GoogLeNet(num_classes=8, aux_logits=True, init_weights=False), images(3, 64), loss)
