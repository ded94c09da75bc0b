"""Carrel's container image, made from one list of contents, with or without a container engine.

    contents       the list: Debian packages, Python packages, files, user, environment, labels
    root_folders   the two layers as folders: Debian and Python packages below, Carrel above
    archive        an image as a file that Docker, Podman, containerd and kind can load
    carrel_image   Carrel's image
    __main__       `python -m tools.image`: `make image`; the Containerfile uses it too

Nothing of the image is run while it is made, except its own Python, to compile what is in it. So an image for another
architecture is made on any machine. There is no shell in it, and no package manager.
"""
