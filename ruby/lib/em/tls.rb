# frozen_string_literal: true

module EventMachine
  # TLS on connections, with OpenSSL.
  module TLS
    # From the names that `ssl_version` takes to the bits of the native library.
    VERSIONS = {
      'sslv2' => EM_PROTO_SSLv2, 'sslv3' => EM_PROTO_SSLv3, 'tlsv1' => EM_PROTO_TLSv1, 'tlsv1_1' => EM_PROTO_TLSv1_1,
      'tlsv1_2' => EM_PROTO_TLSv1_2, 'tlsv1_3' => EM_PROTO_TLSv1_3
    }.freeze
    ALL_VERSIONS = EM_PROTO_TLSv1 | EM_PROTO_TLSv1_1 | EM_PROTO_TLSv1_2 | EM_PROTO_TLSv1_3

    class << self
      # Returns the bits of the versions.
      def versions(names)
        return ALL_VERSIONS if names.nil?

        Array(names).sum(0) do |name|
          VERSIONS.fetch(name.to_s.downcase) { raise "Unrecognized SSL/TLS Version: #{name}" }
        end
      end

      # Raises an exception if the arguments of start_tls contradict each other, or name files that do not exist.
      def check(args)
        %i[private_key_file cert_chain_file dhparam ca_file].each do |name|
          file = args[name]
          next if file.nil? || file.empty? || File.exist?(file)

          raise FileNotFoundException, "could not find the #{name} #{file.inspect}"
        end
        both = ->(one, other) { present?(args[one]) && present?(args[other]) }
        raise BadCertParams, 'either cert or cert_chain_file, not both' if both[:cert, :cert_chain_file]
        raise BadPrivateKeyParams, 'either private_key or private_key_file, not both' if both[:private_key, :private_key_file]

        key = present?(args[:private_key]) || present?(args[:private_key_file])
        raise BadParams, 'a private key needs a certificate' if key && !present?(args[:cert]) && !present?(args[:cert_chain_file])
      end

      private

      def present?(text)
        text && !text.empty?
      end
    end
  end

  class Connection
    # Begins TLS on this connection. `ssl_handshake_completed` is called when it is established.
    #
    # Arguments: private_key_file or private_key, private_key_pass, cert_chain_file or cert, verify_peer, fail_if_no_peer_cert,
    # sni_hostname, cipher_list, ssl_version, ecdh_curve, dhparam.
    #
    # `verify_peer: true` calls `ssl_verify_peer` for each certificate, and verifies nothing else. To verify the peer against
    # authorities, pass `ca_file: path`, or `ca_file: :system` for those that the system trusts. A client then also verifies that
    # the certificate is for `verify_hostname`, or for `sni_hostname` if that is not given. Without any name, it raises.
    def start_tls(args = {})
      roots = args[:ca_file]
      TLS.check(roots == :system ? args.reject { |name, _| name == :ca_file } : args)
      name = (args[:verify_hostname] || args[:sni_hostname]).to_s
      if roots && name.empty? && !accepted?
        raise BadParams, 'ca_file needs verify_hostname or sni_hostname: a certificate is for a name'
      end

      EventMachine.set_tls_parms(@signature, args[:private_key_file].to_s, args[:private_key].to_s, args[:private_key_pass].to_s,
                                 args[:cert_chain_file].to_s, args[:cert].to_s, args[:verify_peer] ? true : false,
                                 args[:fail_if_no_peer_cert] ? true : false, args[:sni_hostname].to_s, args[:cipher_list].to_s,
                                 args[:ecdh_curve].to_s, args[:dhparam].to_s, TLS.versions(args[:ssl_version]))
      EventMachine.set_tls_trust(@signature, roots.to_s, name) if roots
      EventMachine.start_tls(@signature)
    end

    # The certificate of the peer, as PEM.
    def get_peer_cert
      EventMachine.get_peer_cert(@signature)
    end

    def get_cipher_bits
      EventMachine.get_cipher_bits(@signature)
    end

    def get_cipher_name
      EventMachine.get_cipher_name(@signature)
    end

    def get_cipher_protocol
      EventMachine.get_cipher_protocol(@signature)
    end

    # The name that the client has asked for.
    def get_sni_hostname
      EventMachine.get_sni_hostname(@signature)
    end

    # In `unbind`, why TLS has ended the connection, or nil.
    def tls_error
      EventMachine.get_tls_error(@signature)
    end

    # Whether a server has accepted the connection.
    def accepted?
      EventMachine.accepted?(@signature)
    end
  end
end
