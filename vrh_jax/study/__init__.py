"""The study: detection, ranking, masked evaluation, controls, transfer, summary."""
