#!/bin/bash
# Makes a private certificate authority and Kafka's certificate in a folder, for compose.yaml. What is there stays.
# Usage: certificates.sh FOLDER
set -euo pipefail
cd "$1"
if [ -f kafka.pem ]; then
  exit 0
fi
umask 077

openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj "/CN=kafka_lake example CA" \
  -addext "basicConstraints=critical,CA:TRUE" -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj "/CN=kafka" -keyout kafka.key -out kafka.csr 2>/dev/null
openssl x509 -req -in kafka.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 \
  -extfile <(echo "subjectAltName=DNS:kafka,DNS:localhost,IP:127.0.0.1") -out kafka.crt 2>/dev/null

# Nobody shall sign with this authority again. Kafka reads key and certificate from one file.
rm -f ca.key ca.srl kafka.csr
chmod 644 ca.pem
cat kafka.key kafka.crt > kafka.pem.partial
rm kafka.key kafka.crt
mv kafka.pem.partial kafka.pem
