# frozen_string_literal: true

require_relative 'helper'
require 'openssl'
require 'tmpdir'

# TLS on connections, besides what EventMachine's own tests check.
class TestTls < PeltonTest
  # An authority, and what it issues.
  module Certificates
    module_function

    def authority
      @authority ||= make('authority', nil, [])
    end

    def issue(*names)
      make(names.first, authority, names)
    end

    def make(name, issuer, names)
      key = OpenSSL::PKey::EC.generate('prime256v1')
      certificate = OpenSSL::X509::Certificate.new
      certificate.version = 2
      certificate.serial = rand(1 << 60)
      certificate.subject = OpenSSL::X509::Name.parse("/CN=#{name}")
      certificate.issuer = issuer ? issuer.first.subject : certificate.subject
      certificate.not_before = Time.now - 3600
      certificate.not_after = Time.now + 86_400
      certificate.public_key = key
      factory = OpenSSL::X509::ExtensionFactory.new(issuer ? issuer.first : certificate, certificate)
      certificate.add_extension(factory.create_extension('basicConstraints', "CA:#{issuer ? 'FALSE' : 'TRUE'}", true))
      unless names.empty?
        alternatives = names.map { |entry| entry.match?(/\A[\d.]+\z/) ? "IP:#{entry}" : "DNS:#{entry}" }
        certificate.add_extension(factory.create_extension('subjectAltName', alternatives.join(',')))
      end
      certificate.sign(issuer ? issuer.last : key, 'SHA256')
      [certificate, key]
    end
  end

  def setup
    @directory = Dir.mktmpdir
    certificate, key = @issued = Certificates.issue('localhost', '127.0.0.1')
    @server = { cert: certificate.to_pem, private_key: key.to_pem }
    @authority = write('authority.pem', Certificates.authority.first.to_pem)
  end

  def teardown
    super
    FileUtils.rm_rf(@directory)
  end

  def write(name, text)
    File.join(@directory, name).tap { |path| File.write(path, text) }
  end

  # A server that speaks TLS from the start, and echoes.
  def serve_tls(settings = @server)
    serve(Module.new do
      define_method(:post_init) { start_tls(settings) }
      define_method(:receive_data) { |data| send_data(data) }
    end)
  end

  # A client that records what happens. The block gets the connection when the handshake is complete.
  def client(settings, events, &block)
    Module.new do
      define_method(:post_init) { start_tls(settings) }
      define_method(:connection_completed) { events << :connected }
      define_method(:ssl_handshake_completed) do
        events << :secure
        block&.call(self)
      end
      define_method(:receive_data) do |data|
        events << data
        close_connection
      end
      define_method(:unbind) do |reason|
        events << [reason, tls_error]
        EM.stop
      end
    end
  end

  test 'what is sent before the connection exists is encrypted, in order, and connection_completed comes first' do
    events = []
    settings = nil
    run_reactor do
      connection = EM.connect('127.0.0.1', serve_tls, client({ sni_hostname: 'localhost' }, events) do |c|
        settings = [c.get_cipher_protocol, c.get_cipher_bits, c.get_peer_cert]
      end)
      connection.send_data('one ')
      assert_equal 4, connection.get_outbound_data_size
      connection.send_data('two')
    end
    assert_equal [:connected, :secure, 'one two', [nil, nil]], events
    assert_equal ['TLSv1.3', 256, @issued.first.to_pem], settings
  end

  test 'what is sent before start_tls stays plain' do
    plain = nil
    events = []
    run_reactor do
      port = serve(Module.new do
        define_method(:receive_data) do |data|
          if plain
            send_data(data)
          else
            plain = data
            send_data 'go'
            start_tls
          end
        end
      end)
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:post_init) { send_data 'please' }
        define_method(:receive_data) do |data|
          events << data
          if data == 'go'
            start_tls
            send_data 'secret'
          else
            EM.stop
          end
        end
        define_method(:ssl_handshake_completed) { events << :secure }
      end)
    end
    assert_equal 'please', plain
    assert_equal ['go', :secure, 'secret'], events
  end

  test 'large data arrives whole, and connections can be paused' do
    data = Random.new(1).bytes(3_000_000)
    received = +''
    run_reactor do
      port = serve_tls
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:post_init) do
          start_tls
          send_data data
        end
        define_method(:receive_data) do |piece|
          received << piece
          if received.bytesize < 100_000 && !paused?
            pause
            EM.add_timer(0.02) { resume }
          end
          EM.stop if received.bytesize >= data.bytesize
        end
      end)
    end
    assert received == data
  end

  test 'OpenSSL of Ruby talks to it, as client and as server' do
    run_reactor do
      port = serve_tls
      EM.defer(proc do
        context = OpenSSL::SSL::SSLContext.new
        context.ca_file = @authority
        context.verify_mode = OpenSSL::SSL::VERIFY_PEER
        socket = OpenSSL::SSL::SSLSocket.new(TCPSocket.new('127.0.0.1', port), context)
        socket.sync_close = true
        socket.hostname = 'localhost'
        socket.connect
        socket.post_connection_check('localhost')
        socket.write('hello')
        socket.readpartial(5).tap { socket.close }
      end, proc { |answer| assert_equal('hello', answer); EM.stop })
    end
    certificate, key = @issued
    listener = TCPServer.new('127.0.0.1', 0)
    context = OpenSSL::SSL::SSLContext.new
    context.add_certificate(certificate, key)
    thread = Thread.new do
      socket = OpenSSL::SSL::SSLServer.new(listener, context).accept
      socket.write(socket.readpartial(100).upcase)
      # A closing message.
      socket.close
    end
    events = []
    run_reactor do
      EM.connect('127.0.0.1', listener.addr[1], client({}, events)) { |c| c.send_data 'hello' }
    end
    thread.join
    assert_equal [:connected, :secure, 'HELLO'], events.first(3)
  ensure
    listener&.close
  end

  test 'a server is verified against authorities and its name, if asked for' do
    outcome = lambda do |settings, server = @server|
      events = []
      run_reactor { EM.connect('127.0.0.1', serve_tls(server), client(settings, events) { |c| c.send_data('x') }) }
      events
    end
    assert_equal [:connected, :secure, 'x', [nil, nil]], outcome[{ ca_file: @authority, sni_hostname: 'localhost' }]
    assert_equal [:connected, :secure, 'x', [nil, nil]], outcome[{ ca_file: @authority, verify_hostname: '127.0.0.1' }]
    refused = outcome[{ ca_file: @authority, sni_hostname: 'other.example' }]
    assert_equal [:connected, [Errno::EPROTO, refused.last.last]], refused
    assert_match(/hostname mismatch/, refused.last.last)
    certificate, key = Certificates.make('localhost', nil, ['localhost'])
    stranger = { cert: certificate.to_pem, private_key: key.to_pem }
    assert_match(/self-signed certificate/, outcome[{ ca_file: @authority, sni_hostname: 'localhost' }, stranger].last.last)
    assert_match(/unable to get local issuer/, outcome[{ ca_file: :system, sni_hostname: 'localhost' }].last.last)
    # Both have to accept.
    both = { ca_file: @authority, sni_hostname: 'localhost', verify_peer: true }
    assert_equal Errno::EPROTO, outcome[both].last.first, 'ssl_verify_peer returns nil'
    assert_raise(EM::BadParams) { outcome[{ ca_file: @authority }] }
    assert_raise(EM::FileNotFoundException) { outcome[{ ca_file: '/nonexistent', sni_hostname: 'localhost' }] }
  end

  test 'each certificate of a chain is asked about once, from the issuer down' do
    asked = []
    events = []
    chain = @issued.first.to_pem + Certificates.authority.first.to_pem
    run_reactor do
      handler = client({ verify_peer: true }, events) { |c| c.send_data('x') }
      handler.define_method(:ssl_verify_peer) { |pem| asked << OpenSSL::X509::Certificate.new(pem).subject.to_s }
      EM.connect('127.0.0.1', serve_tls(@server.merge(cert: chain)), handler)
    end
    assert_equal ['/CN=authority', '/CN=localhost'], asked
    assert_equal [:connected, :secure, 'x', [nil, nil]], events
  end

  test 'bad certificates, keys and settings raise' do
    garbage = write('garbage', 'garbage')
    certificate, key = @issued
    _, other = Certificates.issue('other')
    encrypted = key.to_pem(OpenSSL::Cipher.new('aes-128-cbc'), 'secret')
    {
      { cert_chain_file: garbage } => EM::InvalidCertificate,
      { cert: 'garbage', private_key: key.to_pem } => EM::InvalidCertificate,
      { cert: certificate.to_pem, private_key_file: garbage } => EM::InvalidPrivateKey,
      { cert: certificate.to_pem, private_key: other.to_pem } => EM::InvalidPrivateKey,
      { cert: certificate.to_pem, private_key: encrypted } => EM::InvalidPrivateKey,
      { cert: certificate.to_pem, private_key: encrypted, private_key_pass: 'wrong' } => EM::InvalidPrivateKey,
      { cert: certificate.to_pem } => EM::InvalidPrivateKey,
      { cert_chain_file: @directory } => EM::InvalidCertificate,
      { cipher_list: 'nonsense' } => RuntimeError,
      { ecdh_curve: 'nonsense' } => RuntimeError,
      { dhparam: garbage } => RuntimeError,
      { dhparam: '/nonexistent' } => EM::FileNotFoundException,
      { ssl_version: 'nonsense' } => RuntimeError,
      { sni_hostname: "a\0b" } => RuntimeError,
      { cipher_list: "ECDH\0" } => RuntimeError,
      { ecdh_curve: "\0" } => RuntimeError,
      { sni_hostname: 'x' * 300 } => RuntimeError
    }.each do |settings, error|
      raised = assert_raise(error, settings.inspect) { run_reactor { EM.connect('127.0.0.1', serve_tls, client(settings, [])) } }
      assert_no_match(/bug/, raised.message)
      assert_reactor_works
    end
  end

  test 'starting twice raises, and starting on what is no connection too' do
    run_reactor do
      connection = EM.connect('127.0.0.1', serve_tls, client({}, []))
      assert_raise(RuntimeError) { connection.start_tls }
      reader, = IO.pipe
      watch = EM.watch(reader)
      assert_raise(RuntimeError) { watch.start_tls }
      assert_raise(RuntimeError) { EM.open_datagram_socket('127.0.0.1', 0).start_tls }
      closed = EM.connect('127.0.0.1', serve)
      closed.close_connection
      EM.add_timer(0.05) do
        assert_nil closed.start_tls
        assert_nil closed.get_peer_cert
        EM.stop
      end
    end
  end

  test 'a connection with TLS cannot be detached' do
    run_reactor do
      EM.connect('127.0.0.1', serve_tls, client({}, []) do |connection|
        assert_raise(RuntimeError) { connection.detach }
        EM.stop
      end)
    end
  end

  test 'a peer that speaks something else is told so, and the program learns why' do
    reason = nil
    run_reactor do
      port = serve(Module.new do
        define_method(:post_init) { start_tls }
        define_method(:unbind) { |error| reason = [error, tls_error]; EM.stop }
      end)
      EM.connect('127.0.0.1', port) { |c| c.send_data "GET / HTTP/1.0\r\n\r\n" }
    end
    assert_equal Errno::EPROTO, reason.first
    assert_match(/http request/, reason.last)
  end

  test 'a handshake may arrive in single bytes' do
    events = []
    run_reactor do
      target = serve_tls
      # A relay that passes on what the client sends byte by byte.
      relay = serve(Module.new do
        define_method(:post_init) do
          client = self
          @server = EM.connect('127.0.0.1', target, Module.new { define_method(:receive_data) { |data| client.send_data(data) } })
        end
        define_method(:receive_data) do |data|
          data.each_char { |char| EM.next_tick { @server.send_data(char) } }
        end
      end)
      EM.connect('127.0.0.1', relay, client({}, events) { |c| c.send_data 'bit by bit' })
    end
    assert_equal [:connected, :secure, 'bit by bit', [nil, nil]], events
  end

  test 'certificates are asked about on the reactor, which is at hand' do
    seen = []
    run_reactor do
      port = serve_tls
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:post_init) { start_tls(verify_peer: true) }
        define_method(:ssl_verify_peer) do |_|
          EM.add_timer(0.001) { seen << :timer }
          other = EM.connect('127.0.0.1', port)
          seen << get_peername.nil? << other.error?
          GC.start
          GC.compact
          send_data 'from the check'
          true
        end
        define_method(:receive_data) { |data| seen << data; EM.add_timer(0.01) { EM.stop } }
      end)
    end
    assert_equal ['false', 'false', 'from the check', 'timer'], seen.map(&:to_s).sort
  end

  test 'a connection that is closed while its certificate is checked ends' do
    unbound = []
    run_reactor do
      EM.connect('127.0.0.1', serve_tls, Module.new do
        define_method(:post_init) { start_tls(verify_peer: true) }
        define_method(:ssl_verify_peer) do |_|
          close_connection
          true
        end
        define_method(:ssl_handshake_completed) { unbound << :secure }
        define_method(:unbind) { |reason| unbound << reason; EM.stop }
      end)
    end
    assert_equal [nil], unbound
  end
end
