"""Operations on jobs: what they run, follow, evidence, policy, and results."""
