#!/bin/bash
echo hello
exit 3
