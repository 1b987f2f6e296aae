"""torch.compile called by the user, on the full model or on each block."""

import torch
from common import next_token_text, training_job
from mha import LanguageModel

import onecurve as oc


def job(how: str = "whole", backend: str = "inductor"):
    def build():
        model = LanguageModel()
        if how == "whole":
            return torch.compile(model, backend=backend)
        if how == "inplace":
            model.compile(backend=backend)
        else:
            for index, block in enumerate(model.blocks):
                model.blocks[index] = torch.compile(block, backend=backend)
        return model

    return training_job(build, next_token_text, oc.loss.next_token)
