import sys
rank = int(sys.argv[1])
world_size = int(sys.argv[2])
print("SEEN", rank, world_size)
