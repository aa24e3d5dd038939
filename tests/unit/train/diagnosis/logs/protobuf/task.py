from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

import old_pb2

print(old_pb2, descriptor_pb2, FieldDescriptor)
