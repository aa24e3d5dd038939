import argparse
p = argparse.ArgumentParser()
p.add_argument("--epochs", required=True)
p.add_argument("--rank", required=True)
p.parse_args()
