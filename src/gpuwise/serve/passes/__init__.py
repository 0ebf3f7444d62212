"""What is not written token by token: a pass through the model answers a request.

``kind`` what differs between kinds, a file each (``encoders``, ``vision``, ``speech``, ``images``), ``batches`` the loop that
they share, ``capacity`` the answer, ``diffusion`` the networks that make images and videos.
"""
