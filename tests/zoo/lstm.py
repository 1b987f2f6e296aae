"""LSTM language model: dropout between layers, output weights tied to the embedding."""

from common import next_token_text, training_job
from torch import nn

import onecurve as oc


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=64, width=32, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def job():
    return training_job(LanguageModel, next_token_text, oc.loss.next_token)
