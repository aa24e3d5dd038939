"""Operations on fleets: resolve, connect, install, repair, and release."""
