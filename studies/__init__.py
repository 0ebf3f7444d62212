"""What a checkout has beside the package: fits of its coefficients, the networks and machines of its measurements, checks of its
facts. Needs measurements that no installation has; nothing in the package imports it."""
