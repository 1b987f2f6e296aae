"""Files that exist whole and verified or not at all, and hold no pickle.

A *checkpoint* is a folder of a store: per rank a safetensors file of chunks and a manifest that says what they are, and
a small root manifest, written last. A *chunk* is a stretch of one tensor's elements that one rank wrote, with its hash.
Every manifest carries its own hash and the checkpoint's token, so that nothing changed, and nothing of another save, is
ever taken for a part. File names are made from rank numbers; no file says where another lies.

Start with saver.py and loader.py. What is saved is handed over as pieces (device/piece.py): this room knows neither
models nor optimizers. weights.py, source.py and export.py are about weights alone, in files that others read.
"""
