# frozen_string_literal: true

# Runs a command in a network of its own, in which everything is on this machine:
#
#   ruby network.rb COMMAND [ARGUMENT]...
#
# A name server knows a few public names, a web server answers at them, with and without TLS, and packets to other addresses
# disappear. So EventMachine's tests that talk to the world need no world. It needs Linux, and root or user namespaces.

require 'open3'
require 'openssl'
require 'resolv'
require 'socket'
require 'tempfile'

# What the name server knows. 127.0.0.1 and .2 are this machine.
ADDRESSES = {
  'example.com' => %w[127.0.0.1],
  'yahoo.com' => %w[127.0.0.1 127.0.0.2],
  'www.google.com' => %w[127.0.0.1]
}.freeze

# Enters namespaces by running this file again in them.
unless ENV['PELTON_STAND_INS']
  own = %w[unshare --net --mount]
  own += %w[--user --map-root-user] unless Process.uid.zero?
  abort "no command; usage: ruby #{$PROGRAM_NAME} COMMAND" if ARGV.empty?
  exec({ 'PELTON_STAND_INS' => '1' }, *own, 'ruby', __FILE__, *ARGV)
end
ENV.delete('PELTON_STAND_INS')

def run(command)
  output, status = Open3.capture2e(command)
  abort "#{command}: #{output}" unless status.success?
end

run 'ip link set lo up'
# Everything that is not on this machine goes to a device at whose other end nobody is.
run 'ip link add hole type veth peer name bottom'
run 'ip link set bottom up'
run 'ip address add 198.51.100.1/24 dev hole'
run 'ip link set hole arp off up'
run 'ip route add default dev hole'
if File.exist?('/proc/sys/net/ipv6')
  run 'ip -6 address add 2001:db8::1/64 dev hole nodad'
  run 'ip -6 route add default dev hole'
end

def replace(path, text)
  file = Tempfile.create('stand-in')
  file.write(text)
  file.close
  File.chmod(0o644, file.path)
  run "mount --bind #{file.path} #{path}"
  at_exit { File.unlink(file.path) }
end

replace '/etc/resolv.conf', "nameserver 127.0.0.1\n"
replace '/etc/hosts', "127.0.0.1 localhost\n::1 localhost\n"

# Answers questions for addresses.
def answer(packet)
  question = Resolv::DNS::Message.decode(packet)
  reply = Resolv::DNS::Message.new(question.id)
  reply.qr = 1
  reply.rd = question.rd
  reply.ra = 1
  question.each_question do |name, type|
    reply.add_question(name, type)
    known = ADDRESSES[name.to_s]
    reply.rcode = 3 unless known
    next unless known && type == Resolv::DNS::Resource::IN::A

    known.each { |address| reply.add_answer(name, 60, Resolv::DNS::Resource::IN::A.new(address)) }
  end
  reply.encode
end

names = UDPSocket.new
names.bind('127.0.0.1', 53)
Thread.new do
  loop do
    packet, from = names.recvfrom(512)
    names.send(answer(packet), 0, from[3], from[1])
  end
end

# Answers requests for pages, one after the other.
def serve(socket)
  while (line = socket.gets)
    keeps = !line.include?('HTTP/1.0')
    while (field = socket.gets) && field != "\r\n"
      keeps = false if field.match?(/\Aconnection: *close/i)
    end
    body = '<html>a stand-in</html>'
    socket.write("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: #{body.size}\r\n")
    socket.write("Connection: #{keeps ? 'keep-alive' : 'close'}\r\n\r\n#{body}")
    break unless keeps
  end
rescue SystemCallError, IOError, OpenSSL::SSL::SSLError
  # The peer has left.
ensure
  socket.close
end

def accept(server)
  Thread.new do
    loop do
      socket = begin
        server.accept
      rescue OpenSSL::SSL::SSLError
        next
      end
      Thread.new { serve(socket) }
    end
  end
end

key = OpenSSL::PKey::EC.generate('prime256v1')
certificate = OpenSSL::X509::Certificate.new
certificate.version = 2
certificate.serial = 1
certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse('/CN=www.google.com')
certificate.not_before = Time.now - 3600
certificate.not_after = Time.now + 86_400
certificate.public_key = key
certificate.sign(key, 'SHA256')
context = OpenSSL::SSL::SSLContext.new
context.add_certificate(certificate, key)
accept(TCPServer.new('127.0.0.1', 80))
accept(OpenSSL::SSL::SSLServer.new(TCPServer.new('127.0.0.1', 443), context))

status = Process.wait2(spawn(*ARGV)).last
exit(status.exitstatus || 1)
