from google.protobuf import descriptor

_FIELD = descriptor.FieldDescriptor(
    name="label", full_name="Example.label", index=0, number=1, type=5, cpp_type=1, label=1,
    has_default_value=False, default_value=0, message_type=None, enum_type=None, containing_type=None,
    is_extension=False, extension_scope=None, serialized_options=None,
)
