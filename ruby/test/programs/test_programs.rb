# frozen_string_literal: true

require_relative '../helper'
require 'net/http'
require 'tmpdir'
require 'openssl'
# Some of these warn about what newer versions of Ruby deprecate.
$VERBOSE = nil
require 'thin'
require 'sinatra/base'
require 'em-http-request'
require 'em-websocket'
require 'faye/websocket'
require 'faye'
require 'em-redis'

# Programs that others wrote for EventMachine, unchanged: servers and clients from Debian's packages.
class TestPrograms < PeltonTest
  DEADLINE = 60

  Thin::Logging.silent = true

  # A Sinatra application.
  class Application < Sinatra::Base
    set :environment, :test
    set :logging, false
    set :show_exceptions, false
    set :host_authorization, permitted_hosts: [] if respond_to?(:host_authorization)

    get('/') { "hello, #{params['name'] || 'world'}" }
    post('/sum') { request.body.read.split(',').sum(&:to_i).to_s }
    get('/large') { 'x' * 3_000_000 }
    get('/elsewhere') { redirect '/?name=elsewhere' }
    get('/fails') { raise 'on purpose' }
    get('/stream') do
      stream(:keep_open) do |out|
        left = 3
        timer = EM.add_periodic_timer(0.01) do
          out << "part #{left}\n"
          if (left -= 1).zero?
            timer.cancel
            out.close
          end
        end
      end
    end
  end

  def self.shutdown
    others = $LOADED_FEATURES.grep(/rubyeventmachine/)
    raise "another EventMachine was loaded: #{others}" unless others.empty?
  end

  # Starts thin with an application. Returns its port.
  def serve_with_thin(application)
    server = Thin::Server.new('127.0.0.1', 0, application, signals: false)
    server.start
    port_of(server.backend.instance_variable_get(:@signature))
  end

  # Calls back with each response, in order.
  def get_all(requests, seen, &done)
    return done.call if requests.empty?

    first, *rest = requests
    http = first.call
    http.callback do
      seen << [http.response_header.status, http.response]
      get_all(rest, seen, &done)
    end
    http.errback { raise "request failed: #{http.error}" }
  end

  test 'thin serves a Sinatra application to em-http-request' do
    seen = []
    run_reactor(DEADLINE) do
      url = "http://127.0.0.1:#{serve_with_thin(Application)}"
      requests = [
        -> { EM::HttpRequest.new("#{url}/").get(query: { name: 'thin' }) },
        -> { EM::HttpRequest.new("#{url}/sum").post(body: (1..1000).to_a.join(',')) },
        -> { EM::HttpRequest.new("#{url}/large").get },
        -> { EM::HttpRequest.new("#{url}/elsewhere").get(redirects: 1) },
        -> { EM::HttpRequest.new("#{url}/missing").get },
        -> { EM::HttpRequest.new("#{url}/stream").get }
      ]
      get_all(requests, seen) { EM.stop }
    end
    seen[2][1] = seen[2][1].size
    seen[4][1] = ''
    expected = [[200, 'hello, thin'], [200, '500500'], [200, 3_000_000], [200, 'hello, elsewhere'], [404, ''],
                [200, "part 3\npart 2\npart 1\n"]]
    assert_equal expected, seen
  end

  test 'thin keeps connections of Net::HTTP alive, and serves many at once' do
    run_reactor(DEADLINE) do
      port = serve_with_thin(Application)
      ask = proc do
        answers = Array.new(8) do |thread|
          Thread.new do
            Net::HTTP.start('127.0.0.1', port) { |http| Array.new(20) { |i| http.get("/?name=#{thread}.#{i}").body } }
          end
        end
        answers.flat_map(&:value)
      end
      EM.defer(ask, proc do |answers|
        assert_equal Array.new(8) { |t| Array.new(20) { |i| "hello, #{t}.#{i}" } }.flatten, answers
        EM.stop
      end)
    end
  end

  test 'fibers turn requests into sequential code' do
    answers = []
    run_reactor(DEADLINE) do
      url = "http://127.0.0.1:#{serve_with_thin(Application)}"
      get = ->(address) { wait_for(EM::HttpRequest.new(address).get) }
      Fiber.new do
        answers << get["#{url}/?name=one"].response << get["#{url}/?name=two"].response
        # The port is closed: the fiber resumes with an error.
        answers << get["http://127.0.0.1:#{closed_port}/"].error.nil?
        EM.stop
      end.resume
    end
    assert_equal ['hello, one', 'hello, two', false], answers
  end

  def wait_for(request)
    current = Fiber.current
    request.callback { current.resume(request) }
    request.errback { current.resume(request) }
    Fiber.yield
  end

  def closed_port
    TCPServer.open('127.0.0.1', 0) { |server| server.addr[1] }
  end

  test 'thin survives an application that fails' do
    seen = []
    run_reactor(DEADLINE) do
      url = "http://127.0.0.1:#{serve_with_thin(->(env) { env['PATH_INFO'] == '/' ? [200, {}, ['fine']] : raise('on purpose') })}"
      get_all(%w[/fails / /fails /].map { |path| -> { EM::HttpRequest.new(url + path).get } }, seen) { EM.stop }
    end
    assert_equal [500, 200, 500, 200], seen.map(&:first)
  end

  # A certificate for localhost, in files.
  def certificate(directory)
    key = OpenSSL::PKey::RSA.new(2048)
    made = OpenSSL::X509::Certificate.new
    made.version = 2
    made.serial = 1
    made.subject = made.issuer = OpenSSL::X509::Name.parse('/CN=localhost')
    made.not_before = Time.now - 3600
    made.not_after = Time.now + 86_400
    made.public_key = key.public_key
    made.add_extension(OpenSSL::X509::ExtensionFactory.new(made, made).create_extension('subjectAltName', 'DNS:localhost'))
    made.sign(key, 'SHA256')
    File.write("#{directory}/key.pem", key.to_pem)
    File.write("#{directory}/certificate.pem", made.to_pem)
  end

  test 'thin speaks TLS, and em-http-request verifies it' do
    seen = []
    Dir.mktmpdir do |directory|
      certificate(directory)
      run_reactor(DEADLINE) do
        server = Thin::Server.new('127.0.0.1', 0, Application, signals: false)
        server.ssl = true
        server.ssl_options = { private_key_file: "#{directory}/key.pem", cert_chain_file: "#{directory}/certificate.pem", verify_peer: false }
        server.start
        port = port_of(server.backend.instance_variable_get(:@signature))
        tls = { verify_peer: true, cert_chain_file: nil, sni_hostname: 'localhost' }
        requests = [-> { EM::HttpRequest.new("https://localhost:#{port}/?name=tls", tls: { verify_peer: false }).get },
                    -> { EM::HttpRequest.new("https://localhost:#{port}/large", tls: { verify_peer: false }).get }]
        get_all(requests, seen) do
          # Nobody has signed the certificate.
          refused = EM::HttpRequest.new("https://localhost:#{port}/", tls: tls).get
          refused.callback { raise 'accepted' }
          refused.errback { seen << :refused; EM.stop }
        end
        EM.error_handler { |error| error.is_a?(OpenSSL::SSL::SSLError) ? nil : raise(error) }
      end
    end
    assert_equal [[200, 'hello, tls'], 3_000_000, :refused], [seen[0], seen[1][1].size, seen[2]]
  end

  test 'em-websocket and faye-websocket talk to each other' do
    seen = []
    run_reactor(DEADLINE) do
      # It starts a server on a port that it is given.
      port = TCPServer.open('127.0.0.1', 0) { |server| server.addr[1] }
      EM::WebSocket.start(host: '127.0.0.1', port: port) do |socket|
        socket.onopen { |handshake| socket.send("welcome to #{handshake.path}") }
        socket.onmessage { |text| socket.send(text.upcase) }
        socket.onbinary { |data| socket.send_binary(data.reverse) }
        socket.onclose { seen << :server_closed; EM.stop }
      end
      client = Faye::WebSocket::Client.new("ws://127.0.0.1:#{port}/chat")
      client.on(:message) do |event|
        seen << (event.data.is_a?(Array) ? event.data.size : event.data)
        case seen.size
        when 1 then client.send('a text')
        when 2 then client.send((0..255).to_a * 1000)
        else client.close
        end
      end
    end
    assert_equal ['welcome to /chat', 'A TEXT', 256_000, :server_closed], seen
  end

  test 'faye publishes to subscribers, over thin and WebSockets' do
    Faye.logger = nil
    seen = []
    run_reactor(DEADLINE) do
      bayeux = Faye::RackAdapter.new(mount: '/faye', timeout: 20)
      Faye::WebSocket.load_adapter('thin')
      port = serve_with_thin(bayeux)
      subscriber = Faye::Client.new("http://127.0.0.1:#{port}/faye")
      publisher = Faye::Client.new("http://127.0.0.1:#{port}/faye")
      # One of them by HTTP only.
      publisher.disable('websocket')
      subscription = subscriber.subscribe('/news') do |message|
        seen << message['text']
        EM.stop if seen.size == 3
      end
      subscription.callback { %w[one two three].each { |text| publisher.publish('/news', 'text' => text) } }
    end
    assert_equal %w[one two three], seen.sort_by { |text| %w[one two three].index(text) }
  end

  test 'em-redis talks to a server' do
    seen = []
    Dir.mktmpdir do |directory|
      port = TCPServer.open('127.0.0.1', 0) { |server| server.addr[1] }
      pid = spawn('redis-server', '--port', port.to_s, '--bind', '127.0.0.1', '--save', '', '--dir', directory, out: File::NULL)
      deadline = Time.now + DEADLINE
      begin
        TCPSocket.new('127.0.0.1', port).close
      rescue Errno::ECONNREFUSED
        sleep 0.02
        retry if Time.now < deadline
      end
      run_reactor(DEADLINE) do
        redis = EM::Protocols::Redis.connect('127.0.0.1', port)
        redis.errback { |code| raise "redis: #{code}" }
        redis.set('a', 'x' * 1_000_000) do |stored|
          seen << stored
          redis.get('a') { |value| seen << value.size }
          redis.incr('n') { |count| seen << count }
          redis.rpush('list', 'one') { redis.lrange('list', 0, -1) { |list| seen << list; EM.stop } }
        end
      end
    ensure
      Process.kill('KILL', pid)
      Process.wait(pid)
    end
    assert_equal ['OK', 1_000_000, 1, ['one']], seen
  end
end
