"""A package, so that the processes of the tests find this one and not another's that is installed as ``tests``."""
